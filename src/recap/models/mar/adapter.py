"""MAR under grouped decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.core.noise import Noise
from recap.models.adapter import TwoStackAdapter, filled, shifted
from recap.models.described import view_blocks
from recap.models.mar.denoiser import Denoiser
from recap.models.mar.diffusion import DiffusionHead
from recap.models.mar.net import MAR
from recap.models.mar.official import sizes_of


@dataclass(frozen=True, slots=True)
class Prepared:
    """What does not change over a run: the embedded buffer, and position embeddings in arrival order."""

    prefix: Tensor  # (branches * B, P, D)
    encoder_pos: Tensor  # (B, N, D)
    decoder_pos: Tensor  # (B, N, D)
    diffusion_pos: Tensor  # (B, N, D)


class MARAdapter(TwoStackAdapter):
    """Full and local evaluations of a MAR network, ours or the authors' own, which it borrows and never changes.

    The order is known before the first step, so every context, target set and sub-step is a slice. The
    encoder sees known tokens only: a local evaluation appends the tokens decoded in its group to it.
    """

    head: DiffusionHead

    def __init__(self, net: Any, *, refresh_prefix: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.net = net
        self.config = net.config if isinstance(net, MAR) else sizes_of(net)
        width = self.config.width
        self.encoder_blocks = view_blocks(self.net.encoder_blocks, "encoder_blocks", width, "MAR")
        self.decoder_blocks = view_blocks(self.net.decoder_blocks, "decoder_blocks", width, "MAR")
        self.head = DiffusionHead(self.net.diffloss.net, self.config.channels, self.config.token_bound)

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        self.check_mode()
        net, p = self.net, self.config.buffer
        condition = self._condition(labels, order, branches)
        return Canvas(
            tokens=torch.zeros(*order.shape, self.config.channels, dtype=torch.float32, device=order.device),
            order=order,
            branches=branches,
            condition=Prepared(
                prefix=net.z_proj_ln(condition.unsqueeze(1) + net.encoder_pos_embed_learned[:, :p]),
                encoder_pos=net.encoder_pos_embed_learned[0, p:][order],
                decoder_pos=net.decoder_pos_embed_learned[0, p:][order],
                diffusion_pos=net.diffusion_pos_embed_learned[0][order],
            ),
        )

    def head_pairs(self, features: Tensor, noise: Noise) -> Iterator[tuple[Tensor, Tensor]]:
        net = self.head.net
        if features.dtype != torch.float32 and not isinstance(net, Denoiser):
            return  # the authors' own forward is for float32
        x = noise.normal(features.shape[1], self.head.channels).to(features.dtype)
        for timestep in (0, 500, 999):
            times = torch.full((x.shape[0] * x.shape[1],), timestep, device=x.device)
            ours = self.head.predict_at(x, features, timestep).flatten(0, 1)
            yield ours, net(x.flatten(0, 1), times, features.flatten(0, 1))

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        condition = self._condition(labels, canvas.order, canvas.branches)
        tokens = canvas.raster().to(self.dtype).repeat(canvas.branches, 1, 1)
        masked = canvas.masked.repeat(canvas.branches, 1)
        if isinstance(self.net, MAR):
            return self.net(tokens, masked, condition)
        mask = masked.to(self.dtype)  # the authors' own halves, as they wrote them
        return self.net.forward_mae_decoder(self.net.forward_mae_encoder(tokens, mask, condition), mask)

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        net, p = self.net, self.config.buffer
        prefix = p if whole or self.refresh_prefix else 0
        arrived = slice(rows.start, max(rows.start, min(rows.stop, canvas.decoded)))
        x = net.z_proj(canvas.tokens[:, arrived].to(self.dtype)) + canvas.condition.encoder_pos[:, arrived]
        x = net.z_proj_ln(x).repeat(canvas.branches, 1, 1)  # (GB, new, D), the same for all branches
        if prefix:
            x = torch.cat([canvas.condition.prefix[: canvas.branches * canvas.batch], x], dim=1)
        if x.shape[1]:
            heard = self.renewed(canvas, arrived, p, p + canvas.decoded, whole)
            x = self.encode(x, cache, heard, net.encoder_norm)
        y = net.decoder_embed(x)
        positions = canvas.condition.decoder_pos[:, rows].repeat(canvas.branches, 1, 1)
        z = filled(y[:, prefix:], net.mask_token, positions)  # (GB, M, D)
        if prefix:
            z = torch.cat([y[:, :p] + net.decoder_pos_embed_learned[:, :p], z], dim=1)
        renewed = self.renewed(canvas, rows, p, p + canvas.size, whole)
        z = self.decode(z, cache, renewed, net.decoder_norm, shifted(wanted, prefix - rows.start))
        positions = canvas.condition.diffusion_pos[:, wanted].repeat(canvas.branches, 1, 1)
        return z + positions  # (GB, n, D)

    def _condition(self, labels: Tensor | None, order: Tensor, branches: int) -> Tensor:
        condition = self.net.class_emb(self.check_labels(labels, order))  # (B, D)
        if branches == 2:
            condition = torch.cat([condition, self.net.fake_latent.expand_as(condition)])
        return condition  # (GB, D)
