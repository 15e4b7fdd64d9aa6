"""The only attention in the library."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from recap.core.cache import LayerCache, Rows


class AttentionLayer(Protocol):
    """What `attend` asks of an attention module; the layers of all three families have it."""

    num_heads: int

    def qkv(self, x: Tensor, /) -> Tensor: ...
    def proj(self, x: Tensor, /) -> Tensor: ...


class BlockLayer(Protocol):
    """A pre-norm transformer block."""

    @property
    def attn(self) -> AttentionLayer: ...
    def norm1(self, x: Tensor, /) -> Tensor: ...
    def norm2(self, x: Tensor, /) -> Tensor: ...
    def mlp(self, x: Tensor, /) -> Tensor: ...


def attend(attn: AttentionLayer, x: Tensor, layer: LayerCache | None = None, rows: Rows | None = None) -> Tensor:
    """Attend from `x` (B, M, D) to all that `layer` remembers once `rows` are renewed; alone without a layer."""
    q, k, v = attn.qkv(x).chunk(3, dim=-1)  # (B, M, D) each
    if layer is not None:
        assert rows is not None
        k, v = layer.write(k, v, rows)  # (B, L, D) each
    heads = attn.num_heads
    mixed = F.scaled_dot_product_attention(split_heads(q, heads), split_heads(k, heads), split_heads(v, heads))
    return attn.proj(mixed.transpose(1, 2).flatten(2))  # (B, M, D)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # (B, H, M, Dh)


def evaluate_block(block: BlockLayer, x: Tensor, layer: LayerCache | None = None, rows: Rows | None = None) -> Tensor:
    """A pre-norm block over `x`, with or without a cache."""
    x = x + attend(block.attn, block.norm1(x), layer, rows)
    return x + block.mlp(block.norm2(x))
