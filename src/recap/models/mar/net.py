"""MAR: an encoder over the known tokens, a decoder over all, and a diffusion head for each token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recap.models.layers import Block
from recap.models.mar.config import MARConfig
from recap.models.mar.denoiser import DiffusionLoss


class MAR(nn.Module):
    """The network of MAR, parameters under the official names."""

    def __init__(self, config: MARConfig) -> None:
        super().__init__()
        self.config = config
        d, length = config.width, config.buffer + config.num_tokens
        self.fake_latent = nn.Parameter(torch.zeros(1, d))
        self.class_emb = nn.Embedding(config.classes, d)
        self.z_proj = nn.Linear(config.channels, d)
        self.z_proj_ln = nn.LayerNorm(d, eps=1e-6)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, length, d))
        self.encoder_blocks = nn.ModuleList(Block(d, config.heads) for _ in range(config.encoder_depth))
        self.encoder_norm = nn.LayerNorm(d, eps=1e-6)
        self.decoder_embed = nn.Linear(d, d)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, d))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, length, d))
        self.decoder_blocks = nn.ModuleList(Block(d, config.heads) for _ in range(config.decoder_depth))
        self.decoder_norm = nn.LayerNorm(d, eps=1e-6)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, config.num_tokens, d))
        self.diffloss = DiffusionLoss(config.channels, d, config.head_width, config.head_depth)

    def forward(self, tokens: Tensor, masked: Tensor, condition: Tensor, hidden: int | None = None) -> Tensor:
        """Features of every position, in raster order, the plain way: nothing cached, no order of arrival.

        tokens: (B, N, C); masked: (B, N) bool, as many in every image; condition: (B, D) class vectors.
        `hidden` is how many are masked; who knows it saves a wait for the device.
        """
        visible = self.visible(masked, hidden)
        return self.decode(self.encode(tokens, visible, condition), visible)  # (B, N, D)

    def encode(self, tokens: Tensor, visible: Tensor, condition: Tensor) -> Tensor:
        buffer = condition.unsqueeze(1).expand(-1, self.config.buffer, -1)  # (B, P, D)
        x = torch.cat([buffer, self.z_proj(tokens)], dim=1) + self.encoder_pos_embed_learned  # (B, P + N, D)
        x = self.z_proj_ln(x.gather(1, visible.expand(-1, -1, x.shape[-1])))  # (B, P + c, D)
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_norm(x)

    def decode(self, encoded: Tensor, visible: Tensor) -> Tensor:
        y = self.decoder_embed(encoded)  # (B, P + c, D)
        x = self.mask_token.to(y.dtype).expand(len(y), self.decoder_pos_embed_learned.shape[1], -1)
        x = x.scatter(1, visible.expand(-1, -1, y.shape[-1]), y) + self.decoder_pos_embed_learned  # (B, P + N, D)
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_norm(x)[:, self.config.buffer :] + self.diffusion_pos_embed_learned

    def visible(self, masked: Tensor, hidden: int | None = None) -> Tensor:
        """Places of the buffer and of the known tokens, in raster order (B, P + c, 1)."""
        hidden = int(masked[0].sum()) if hidden is None else hidden
        buffer = masked.new_zeros(len(masked), self.config.buffer)
        order = torch.cat([buffer, masked], dim=1).to(torch.uint8).argsort(dim=1, stable=True)
        return order[:, : order.shape[1] - hidden, None]
