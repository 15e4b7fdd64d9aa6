"""MAGE under grouped decoding."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from recap.core.attention import evaluate_stack
from recap.core.cache import CacheLayout, ContextCache, Rows
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead
from recap.core.schedule import Schedule
from recap.models.adapter import Adapter
from recap.models.layers import embed
from recap.models.mage.net import MAGE
from recap.models.mage.official import logits_of, plain_forward, sizes_of
from recap.models.views import view_blocks


class MAGEAdapter(Adapter):
    """Full and local evaluations of a MAGE network, ours or the authors' own, which it borrows and never changes.

    The encoder sees masked tokens too. The decoder's input at masked positions is the encoder's output at
    the class row: the cache keeps that vector, and local evaluations reuse it. What the encoder makes of
    masked rows is thrown away; `skip_masked=True` leaves them out of its local evaluations.
    """

    def __init__(self, net: Any, *, refresh_prefix: bool = False, skip_masked: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.net = net
        self.config = net.config if isinstance(net, MAGE) else sizes_of(net)
        self.skip_masked = skip_masked
        self.encoder_blocks = view_blocks(self.net.blocks, "blocks", self.config.width, "MAGE")
        self.decoder_blocks = view_blocks(self.net.decoder_blocks, "decoder_blocks", self.config.width, "MAGE")
        self.head = CategoricalHead(net.logits if isinstance(net, MAGE) else logits_of(net, self.config.codes))

    def single_layer(self) -> Self:
        # its first decoder layer
        return self.replace(encoder_blocks=[], decoder_blocks=self.decoder_blocks[:1])

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        canvas = super().start(labels, order, branches)
        first = torch.zeros_like(order[:, :1])
        canvas.condition = embed(self.net.token_emb, first + self.config.fake_class, first)  # (B, 1, D)
        return canvas

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        ids = canvas.raster()
        return self.net(ids) if isinstance(self.net, MAGE) else plain_forward(self.net, ids, self.config)

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        layout = self.config.cache_layout(schedule)
        return self.cut(layout, encoder=len(self.encoder_blocks), decoder=len(self.decoder_blocks))

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        x = torch.cat([canvas.condition, self._embed(canvas, slice(0, canvas.size))], dim=1)  # (B, 1 + N, D)
        x = self._encode(x, cache, Rows.all(1 + canvas.size))
        y = self.net.decoder_embed(x[:, : 1 + canvas.decoded])  # (B, 1 + c, D)
        pad = y[:, :1]
        if cache is not None:
            cache.pad.copy_(pad)
        y = torch.cat([pad + self._class_pos, self._decoder_input(canvas, y[:, 1:], pad, slice(0, canvas.size))], 1)
        return self._decode(y, cache, Rows.all(1 + canvas.size), slice(1 + wanted.start, 1 + wanted.stop))

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        prefix = int(self.refresh_prefix)
        known = max(0, min(rows.stop, canvas.decoded) - rows.start)
        seen = slice(rows.start, rows.start + known) if self.skip_masked else rows
        x = self._embed(canvas, seen)  # (B, M, D)
        if prefix:
            x = torch.cat([canvas.condition, x], dim=1)
        if x.shape[1]:
            x = self._encode(x, cache, self.target(canvas, seen, 1, 1 + canvas.size))
        y = self.net.decoder_embed(x[:, : prefix + known])
        if prefix:
            cache.pad.copy_(y[:, :1])
        z = self._decoder_input(canvas, y[:, prefix:], cache.pad, rows)  # (B, M, D)
        if prefix:
            z = torch.cat([cache.pad + self._class_pos, z], dim=1)
        first = prefix - rows.start
        only = slice(first + wanted.start, first + wanted.stop)
        return self._decode(z, cache, self.target(canvas, rows, 1, 1 + canvas.size), only)

    @property
    def _class_pos(self) -> Tensor:
        return self.net.decoder_pos_embed_learned[:, :1]

    def _embed(self, canvas: Canvas, rows: slice) -> Tensor:
        return embed(self.net.token_emb, canvas.tokens[:, rows], canvas.order[:, rows] + 1)

    def _decoder_input(self, canvas: Canvas, known: Tensor, pad: Tensor, rows: slice) -> Tensor:
        """Decoder input of `rows`, the first of which are known; the pad vector stands for the rest."""
        positions = self.net.decoder_pos_embed_learned[0, 1:][canvas.order[:, rows]]  # (B, n, D)
        n = known.shape[1]
        return torch.cat([known + positions[:, :n], pad + positions[:, n:]], dim=1)

    def _encode(self, x: Tensor, cache: ContextCache | None, rows: Rows) -> Tensor:
        layers = self.layers(self.encoder_blocks, cache, "encoder", len(x))
        return evaluate_stack(layers, x, rows, self.net.norm, ops=self.ops)

    def _decode(self, x: Tensor, cache: ContextCache | None, rows: Rows, only: slice) -> Tensor:
        layers = self.layers(self.decoder_blocks, cache, "decoder", len(x))
        return evaluate_stack(layers, x, rows, self.net.decoder_norm, only=only, ops=self.ops)
