"""Bidirectional language models under grouped decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from recap.core.attention import Ops
from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas, take
from recap.core.heads import CategoricalHead
from recap.core.protocols import Selector
from recap.core.selection import RandomOrder
from recap.models.adapter import shifted
from recap.models.described import DescribedAdapter
from recap.models.text.config import TextConfig
from recap.models.text.descriptions import described_config, description_of
from recap.models.text.net import TextModel

SHORT = 64  # tokens of a text with which a model is tried out


class TextAdapter(DescribedAdapter):
    """Full and local evaluations of LLaDA, Dream and their relatives, in their authors' classes or in ours.

    Texts of a batch may differ in length: what fills short ones up stands behind them, and no row attends to it.
    Under guidance the second branch has masks in the place of the prompt. Where a row predicts the position behind it
    (`shift`), an evaluation computes the rows before those that are wanted too.
    """

    config: TextConfig
    knows_lengths = True

    def __init__(self, net: nn.Module, *, refresh_prefix: bool = False) -> None:
        config, blocks = described_config(net)
        super().__init__(net, description_of(config, blocks), refresh_prefix=refresh_prefix)
        self.config = config
        assert isinstance(self.head, CategoricalHead)
        self.head = CategoricalHead(self.head.logits, barred=config.mask_id)  # what is written is never a mask

    def at(self, num_tokens: int) -> Self:
        """The same model for texts of another length."""
        longest = self.longest
        if not 1 <= num_tokens <= longest:
            raise ValueError(
                f"a text has {num_tokens} tokens, prompt and all; this model has places for 1 to {longest}"
            )
        return self.replace(config=replace(self.config, num_tokens=num_tokens))

    def short(self) -> Self:
        return self.at(min(self.num_tokens, SHORT))

    @property
    def longest(self) -> int:
        return self.description.num_tokens

    @property
    def guidable(self) -> bool:
        return True

    def selector(self) -> Selector:
        return RandomOrder()

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        """An empty canvas; `labels` are the lengths of texts where some of them were filled up."""
        self.check_mode()
        canvas = Canvas(torch.full_like(order, self.config.mask_id), order, branches)
        if labels is not None:
            canvas.condition = order < labels[:, None]  # (B, N) True where rows belong to the text; these never move
        return canvas

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        ids = canvas.raster()
        seen = None
        if canvas.condition is not None:
            seen = torch.empty_like(canvas.condition).scatter(1, canvas.order, canvas.condition)
        if canvas.branches == 2:
            prompt = torch.zeros_like(ids, dtype=torch.bool).scatter(1, canvas.order[:, : canvas.known], True)
            ids = torch.cat([ids, ids.masked_fill(prompt, self.config.mask_id)])
            seen = None if seen is None else seen.repeat(2, 1)
        logits = self.forward(ids, seen)
        if self.config.shift:
            logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1)
        return logits

    def forward(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        """Logits (B, N, V) of the network's own forward, as its rows have them."""
        if isinstance(self.module, TextModel):
            return self.module(ids, seen)
        if seen is None:
            return self.module(input_ids=ids).logits
        mask: Any = seen.long()
        if self.config.shift:  # Dream's forward takes what its own generation makes of a mask
            mask = (seen[:, None, :, None] & seen[:, None, None, :]).bool()
        return self.module(input_ids=ids, attention_mask=mask).logits

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        renewed, only = self.renewed(canvas, rows, 0, canvas.size, whole), shifted(wanted, -rows.start)
        index = torch.arange(rows.start, rows.stop, device=canvas.order.device).expand(canvas.batch, -1)  # (B, M)
        if not self.config.shift:
            tokens, positions = canvas.tokens[:, rows], canvas.order[:, rows]
            return self._computed(canvas, cache, tokens, positions, index, renewed, only)
        before = predecessors(canvas, wanted)  # (B, C)
        if whole:
            return take(self._computed(canvas, cache, canvas.tokens, canvas.order, index, renewed, None), before)
        index = torch.cat([index, before], dim=1)  # (B, M + C), some rows twice
        places = index if canvas.cache_rows is None else canvas.cache_rows.gather(1, index)
        renewed = Rows(canvas.size, cache_rows=places.repeat(canvas.branches, 1))
        tokens, positions = canvas.tokens.gather(1, index), canvas.order.gather(1, index)
        only = slice(rows.stop - rows.start, index.shape[1])
        return self._computed(canvas, cache, tokens, positions, index, renewed, only)

    def _computed(
        self,
        canvas: Canvas,
        cache: ContextCache | None,
        tokens: Tensor,
        positions: Tensor,
        index: Tensor,
        renewed: Rows,
        only: slice | None,
    ) -> Tensor:
        """Features of the rows `index` (B, M) of both branches."""
        if canvas.branches == 2:
            tokens = torch.cat([tokens, tokens.masked_fill(index < canvas.known, self.config.mask_id)])
            positions = positions.repeat(2, 1)
        return self.through(self._embed(tokens, positions), positions, cache, renewed, only, self._seeing(canvas))

    def _seeing(self, canvas: Canvas) -> Ops:
        seen = canvas.condition
        return self.ops if seen is None else self.ops.seeing(seen.repeat(canvas.branches, 1))


def predecessors(canvas: Canvas, wanted: slice) -> Tensor:
    """The rows (B, C) of the positions before those of `wanted`; the first position counts as its own."""
    positions = (canvas.order[:, wanted] - 1).clamp(min=0)
    return canvas.order.argsort(dim=1).gather(1, positions)
