"""MaskGIT in the form that the paper uses: AutoNAT's U-ViT, a transformer with long skips."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recap.models.layers import Block, TokenEmbedding, TokenLogits
from recap.models.maskgit.config import MaskGITConfig


class SkipBlock(Block):
    """A block whose input is first merged, row by row, with an earlier block's output."""

    def __init__(self, width: int, heads: int, eps: float, qkv_bias: bool) -> None:
        super().__init__(width, heads, eps, qkv_bias)
        self.skip_linear = nn.Linear(2 * width, width)


class MaskGIT(nn.Module):
    """The network of AutoNAT, parameters under the official names."""

    def __init__(self, config: MaskGITConfig) -> None:
        super().__init__()
        self.config = config
        d, heads, half = config.width, config.heads, config.depth // 2
        self.token_emb = TokenEmbedding(config.codes + 1, config.num_tokens, d)
        self.context_embed = TokenEmbedding(config.classes + 1, 1, d)
        self.in_blocks = nn.ModuleList(Block(d, heads, eps=1e-5, qkv_bias=False) for _ in range(half))
        self.mid_block = Block(d, heads, eps=1e-5, qkv_bias=False)
        self.out_blocks = nn.ModuleList(SkipBlock(d, heads, eps=1e-5, qkv_bias=False) for _ in range(half))
        self.norm = nn.LayerNorm(d, eps=1e-5)
        self.mlm_layer = TokenLogits(config.codes + 1, d)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Logits over the codebook for every position, in raster order, the plain way.

        ids: (B, N) with `config.mask_id` where masked; labels: (B), `config.null_class` for none.
        """
        tokens = self.token_emb(ids, torch.arange(ids.shape[1], device=ids.device))
        labels = labels.unsqueeze(1)
        x = torch.cat([self.context_embed(labels, torch.zeros_like(labels)), tokens], dim=1)  # (B, 1 + N, D)
        skips = []
        for block in self.in_blocks:
            x = block(x)
            skips.append(x)
        x = self.mid_block(x)
        for block in self.out_blocks:
            merge = block.get_submodule("skip_linear")  # x first, then the earlier output
            x = block(merge(torch.cat([x, skips.pop()], dim=-1)))
        return self.logits(self.norm(x[:, 1:]))  # (B, N, V)

    def logits(self, features: Tensor) -> Tensor:
        return self.mlm_layer(features, self.token_emb.word_embeddings.weight, self.config.codes)
