"""MaskGIT under grouped decoding."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from recap.core.attention import advance, evaluate_stack
from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead
from recap.models.adapter import StackAdapter, shifted
from recap.models.described import view_blocks
from recap.models.layers import embed, logits_of
from recap.models.maskgit.net import MaskGIT
from recap.models.maskgit.official import sizes_of


class MaskGITAdapter(StackAdapter):
    """Full and local evaluations of a U-ViT with one class token, ours or the authors' own, which it never changes.

    Long skips need no cache: merging is per row, so the rows of a local evaluation bring their own.
    """

    def __init__(self, net: Any, *, refresh_prefix: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.net = net
        self.config = net.config if isinstance(net, MaskGIT) else sizes_of(net)
        width = self.config.width
        stacks = ("in_blocks", net.in_blocks), ("mid_block", [net.mid_block]), ("out_blocks", net.out_blocks)
        self.blocks = [block for name, blocks in stacks for block in view_blocks(blocks, name, width, "MaskGIT")]
        self.merges = [block.skip_linear for block in self.net.out_blocks]
        self.head = CategoricalHead(net.logits if isinstance(net, MaskGIT) else logits_of(net, self.config.codes))

    def single_layer(self) -> Self:
        # its middle block
        return self.replace(blocks=[self.blocks[len(self.blocks) // 2]])

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        self.check_mode()
        ids = torch.full_like(order, self.config.mask_id)
        classes = self._labels(labels, order, branches).unsqueeze(1)
        prefix = embed(self.net.context_embed, classes, torch.zeros_like(classes))  # (GB, 1, D)
        return Canvas(tokens=ids, order=order, branches=branches, condition=prefix)

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        ids = canvas.raster().repeat(canvas.branches, 1)
        classes = self._labels(labels, canvas.order, canvas.branches)
        if isinstance(self.net, MaskGIT):
            return self.net(ids, classes)
        return self.net(ids, context=classes.unsqueeze(1))

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        x = embed(self.net.token_emb, canvas.tokens[:, rows], canvas.order[:, rows])
        x = x.repeat(canvas.branches, 1, 1)  # (GB, M, D)
        prefix = int(whole or self.refresh_prefix)
        if prefix:
            x = torch.cat([canvas.condition[: canvas.branches * canvas.batch], x], dim=1)
        renewed = self.renewed(canvas, rows, 1, 1 + canvas.size, whole)
        return self._stack(x, cache, renewed, shifted(wanted, prefix - rows.start))

    def _labels(self, labels: Tensor | None, order: Tensor, branches: int) -> Tensor:
        labels = self.check_labels(labels, order)
        if branches == 2:
            labels = torch.cat([labels, torch.full_like(labels, self.config.null_class)])
        return labels  # (GB)

    def _stack(self, x: Tensor, cache: ContextCache | None, rows: Rows, only: slice) -> Tensor:
        stack = list(self.layers(self.blocks, cache, "blocks", len(x)))
        skips: list[Tensor] = []
        normed: Tensor | None = None
        half = len(stack) // 2
        for index, (block, layer) in enumerate(stack[:-1]):
            if index > half:
                x = self.ops.merge(self.merges[index - half - 1], x, skips.pop())
            first = block.norm1(x) if normed is None else normed
            # what follows a block of the first half is the next one's norm; in the second half it is a merge
            after = stack[index + 1][0].norm1 if index < half else None
            x, following = advance(block, x, first, layer, rows, after=after, ops=self.ops)
            normed = None if after is None else following
            if index < half:
                skips.append(x)
        if len(stack) > 1:
            x = self.ops.merge(self.merges[half - 1], x, skips.pop())
        return evaluate_stack(stack[-1:], x, rows, self.net.norm, only=only, ops=self.ops)
