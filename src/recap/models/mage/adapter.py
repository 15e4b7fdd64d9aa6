"""MAGE under grouped decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead
from recap.models.adapter import TwoStackAdapter, filled, shifted
from recap.models.described import view_blocks
from recap.models.layers import embed, logits_of
from recap.models.mage.net import MAGE
from recap.models.mage.official import plain_forward, sizes_of


class MAGEAdapter(TwoStackAdapter):
    """Full and local evaluations of a MAGE network, ours or the authors' own, which it borrows and never changes.

    The encoder sees masked tokens too. The decoder's input at masked positions is the encoder's output at
    the class row: the cache keeps that vector, and local evaluations reuse it.
    """

    def __init__(self, net: Any, *, refresh_prefix: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.net = net
        self.config = net.config if isinstance(net, MAGE) else sizes_of(net)
        self.encoder_blocks = view_blocks(self.net.blocks, "blocks", self.config.width, "MAGE")
        self.decoder_blocks = view_blocks(self.net.decoder_blocks, "decoder_blocks", self.config.width, "MAGE")
        self.head = CategoricalHead(net.logits if isinstance(net, MAGE) else logits_of(net, self.config.codes))

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        canvas = super().start(labels, order, branches)
        first = torch.zeros_like(order[:, :1])
        canvas.condition = embed(self.net.token_emb, first + self.config.fake_class, first)  # (B, 1, D)
        return canvas

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        ids = canvas.raster()
        return self.net(ids) if isinstance(self.net, MAGE) else plain_forward(self.net, ids, self.config)

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        prefix, known = int(whole or self.refresh_prefix), max(0, min(rows.stop, canvas.decoded) - rows.start)
        renewed = self.renewed(canvas, rows, 1, 1 + canvas.size, whole)
        x = embed(self.net.token_emb, canvas.tokens[:, rows], canvas.order[:, rows] + 1)  # (B, M, D)
        if prefix:
            x = torch.cat([canvas.condition, x], dim=1)
        x = self.encode(x, cache, renewed, self.net.norm)
        y = self.net.decoder_embed(x[:, : prefix + known])
        if prefix and cache is not None:
            cache.pad.copy_(y[:, :1])
        pad = y[:, :1] if cache is None else cache.pad
        positions = self.net.decoder_pos_embed_learned[0, 1:][canvas.order[:, rows]]
        z = filled(y[:, prefix:], pad, positions)  # (B, M, D)
        if prefix:
            z = torch.cat([pad + self.net.decoder_pos_embed_learned[:, :1], z], dim=1)
        return self.decode(z, cache, renewed, self.net.decoder_norm, shifted(wanted, prefix - rows.start))
