"""The only attention in the library, and the pre-norm block around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from recap.core.cache import LayerCache, Rows

Norm = Callable[[Tensor], Tensor]


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


class Ops:
    """The steps between the matrix products of a block, as torch has them; an engine brings faster ones."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads (B, H, M, Dh) against (B, H, L, Dh)."""
        return F.scaled_dot_product_attention(q, k, v)

    def linear(self, linear: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The projection of a block's input (B, M, D)."""
        return linear(x)

    def store(self, layer: LayerCache, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Keys and values into a layer's cache, and all that is to be attended over."""
        return layer.write(k, v, rows)

    def merge(self, linear: Callable[[Tensor], Tensor], x: Tensor, skip: Tensor) -> Tensor:
        """A linear layer over two tensors side by side."""
        return linear(torch.cat([x, skip], dim=-1))

    def mlp(self, mlp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """A block's MLP."""
        return mlp(x)

    def add_norm(self, x: Tensor, y: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """The sum, and the norm of it."""
        x = x + y
        return x, norm(x)


TORCH = Ops()


def attend(
    attn: AttentionLayer,
    x: Tensor,
    layer: LayerCache | None = None,
    rows: Rows | None = None,
    *,
    only: slice | None = None,
    ops: Ops = TORCH,
) -> Tensor:
    """Attend from `x` (B, M, D) to all that `layer` remembers once `rows` are renewed; alone without a layer.

    With `only`, just these rows of `x` ask; all of them answer.
    """
    q, k, v = ops.linear(attn.qkv, x).chunk(3, dim=-1)  # (B, M, D) each
    if only is not None:
        q = q[:, only]
    if layer is not None:
        assert rows is not None
        k, v = ops.store(layer, k, v, rows)  # (B, L, D) each
    heads = attn.num_heads
    mixed = ops.attention(split_heads(q, heads), split_heads(k, heads), split_heads(v, heads))
    return attn.proj(mixed.transpose(1, 2).flatten(2))  # (B, M, D)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # (B, H, M, Dh)


def evaluate_block(
    block: BlockLayer, x: Tensor, layer: LayerCache | None = None, rows: Rows | None = None, ops: Ops = TORCH
) -> Tensor:
    """A pre-norm block over `x`, with or without a cache."""
    return advance(block, x, block.norm1(x), layer, rows, ops=ops)[0]


def advance(
    block: BlockLayer,
    x: Tensor,
    normed: Tensor,
    layer: LayerCache | None = None,
    rows: Rows | None = None,
    *,
    after: Norm | None = None,
    only: slice | None = None,
    ops: Ops = TORCH,
) -> tuple[Tensor, Tensor]:
    """A block over `x`, whose norm is known, and the norm `after` it (without one, the block's output twice)."""
    mixed = attend(block.attn, normed, layer, rows, only=only, ops=ops)
    x, normed = ops.add_norm(x if only is None else x[:, only], mixed, block.norm2)
    update = ops.mlp(block.mlp, normed)
    if after is None:
        x = x + update
        return x, x
    return ops.add_norm(x, update, after)


def evaluate_stack(
    layers: Iterable[tuple[BlockLayer, LayerCache | None]],
    x: Tensor,
    rows: Rows,
    norm: Norm,
    *,
    only: slice | None = None,
    ops: Ops = TORCH,
) -> Tensor:
    """Blocks one after another and `norm` at the end; with `only`, the last block goes on with these rows alone."""
    stack = list(layers)
    if not stack:
        return norm(x if only is None else x[:, only])
    following = [*(block.norm1 for block, _ in stack[1:]), norm]
    normed = stack[0][0].norm1(x)
    for index, ((block, layer), after) in enumerate(zip(stack, following, strict=True)):
        last = only if index + 1 == len(stack) else None
        x, normed = advance(block, x, normed, layer, rows, after=after, only=last, ops=ops)
    return normed
