"""MAGE: encoder and decoder over all tokens, unconditional."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recap.models.layers import Block, TokenEmbedding, TokenLogits
from recap.models.mage.config import MAGEConfig
from recap.tokenizers.vqgan import VQGAN


class MAGE(nn.Module):
    """The network of MAGE, parameters under the official names."""

    def __init__(self, config: MAGEConfig) -> None:
        super().__init__()
        self.config = config
        d, length = config.width, 1 + config.num_tokens
        if config.patch:  # read by pre-training alone; here so that official files load strictly
            self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
            self.pos_embed = nn.Parameter(torch.zeros(1, length, d))
            self.mask_token = nn.Parameter(torch.zeros(1, 1, d))
            self.decoder_pos_embed = nn.Parameter(torch.zeros(1, length, d))
            self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, d, config.patch, stride=config.patch)})
            self.decoder_pred = nn.Linear(d, 3 * config.patch**2)
        self.token_emb = TokenEmbedding(config.words, length, d)
        self.token_emb.register_buffer("position_ids", torch.arange(length).unsqueeze(0))
        self.blocks = nn.ModuleList(Block(d, config.heads) for _ in range(config.encoder_depth))
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.decoder_embed = nn.Linear(d, d)
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, length, d))
        self.decoder_blocks = nn.ModuleList(Block(d, config.decoder_heads) for _ in range(config.decoder_depth))
        self.decoder_norm = nn.LayerNorm(d, eps=1e-6)
        self.mlm_layer = TokenLogits(config.words, d)
        if config.vqgan is not None:
            self.vqgan = VQGAN(config.vqgan)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits over the codebook for every position, in raster order, the plain way.

        ids: (B, N) with `config.mask_id` where masked.
        """
        features = self.decode(self.encode(ids), ids == self.config.mask_id)
        return self.logits(features[:, 1:])  # (B, N, V)

    def encode(self, ids: Tensor) -> Tensor:
        ids = torch.cat([torch.full_like(ids[:, :1], self.config.fake_class), ids], dim=1)
        x = self.token_emb(ids, torch.arange(ids.shape[1], device=ids.device))  # (B, 1 + N, D)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def decode(self, encoded: Tensor, masked: Tensor) -> Tensor:
        y = self.decoder_embed(encoded)  # (B, 1 + N, D)
        pad = y[:, :1]  # the class row's output stands for every masked position
        y = torch.cat([pad, torch.where(masked.unsqueeze(-1), pad, y[:, 1:])], dim=1)
        y = y + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            y = block(y)
        return self.decoder_norm(y)

    def logits(self, features: Tensor, codes: int | None = None) -> Tensor:
        return self.mlm_layer(features, self.token_emb.word_embeddings.weight, codes or self.config.codes)
