"""The transformer block that the three families share, under its official parameter names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.core.attention import advance, attend


class Attention(nn.Module):
    """Multi-head self-attention with a fused projection laid out as (q, k, v)."""

    def __init__(self, width: int, heads: int, qkv_bias: bool = True) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return attend(self, x)


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)  # the largest tensor of a block: not held twice where no gradient needs it
        return self.fc2(F.gelu(hidden) if torch.is_grad_enabled() else torch.ops.aten.gelu_(hidden))


class Block(nn.Module):
    """Pre-norm attention and MLP, each with a residual."""

    def __init__(self, width: int, heads: int, eps: float = 1e-6, qkv_bias: bool = True) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, heads, qkv_bias)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = MLP(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        return advance(self, x, self.norm1(x))[0]


class TokenEmbedding(nn.Module):
    """Word and position embeddings, summed and normalised (BERT's, as MAGE and AutoNAT use them)."""

    def __init__(self, vocab: int, positions: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, width)
        self.position_embeddings = nn.Embedding(positions, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return embed(self, ids, positions)


def embed(layer: Any, ids: Tensor, positions: Tensor) -> Tensor:
    """What an embedding layer of this kind, the official ones included, gives for ids at any positions."""
    return layer.LayerNorm(layer.word_embeddings(ids) + layer.position_embeddings(positions))


class TokenLogits(nn.Module):
    """Logits over the codebook, tied to the word embeddings."""

    def __init__(self, vocab: int, width: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.ln = nn.LayerNorm(width, eps=1e-5)
        self.bias = nn.Parameter(torch.zeros(1, 1, vocab))

    def forward(self, features: Tensor, table: Tensor, codes: int | None = None) -> Tensor:
        """Logits of the first `codes` ids (all by default); `table` is the embedding matrix."""
        x = self.ln(F.gelu(self.fc(features)))
        return F.linear(x, table[:codes], self.bias[0, 0, :codes])


def logits_of(net: Any, codes: int) -> Callable[[Tensor], Tensor]:
    """The codebook's logits, by the layer of an instance and the embeddings that it is tied to."""
    return lambda features: net.mlm_layer(features, net.token_emb.word_embeddings.weight)[..., :codes]


def is_plain(layer: object) -> TypeGuard[nn.Linear]:
    """Whether a layer is torch's linear one and nothing else: others (LoRA, quantized) are called as modules."""
    return type(layer) is nn.Linear and layer.bias is not None and not layer._forward_hooks


def width_block(width: int) -> dict[str, int]:
    """How a Triton program takes a row of `width` numbers."""
    block = 1 << (width - 1).bit_length()
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 256))}
