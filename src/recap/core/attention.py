"""The only attention in the library, and the blocks around it: norms before their parts, or after the sums."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from recap.core.cache import LayerCache, Rows

Norm = Callable[[Tensor], Tensor]
Projected = Tensor | tuple[Tensor, Tensor, Tensor]  # queries, keys and values, side by side or one by one


class AttentionLayer(Protocol):
    """What `attend` asks of an attention module; the layers of all three families have it."""

    @property
    def num_heads(self) -> int: ...
    def qkv(self, x: Tensor, /) -> Projected: ...
    def proj(self, x: Tensor, /) -> Tensor: ...


class BlockLayer(Protocol):
    """A transformer block; whether its norms come before their parts or after the sums is for the caller to say."""

    @property
    def attn(self) -> AttentionLayer: ...
    def norm1(self, x: Tensor, /) -> Tensor: ...
    def norm2(self, x: Tensor, /) -> Tensor: ...
    def mlp(self, x: Tensor, /) -> Tensor: ...


class Ops:
    """The steps between the matrix products of a block, as torch has them; an engine brings faster ones."""

    seen: Tensor | None = None  # (B, 1, 1, L) False at rows that only fill up a batch

    def seeing(self, rows: Tensor) -> Self:
        """The same steps, where keys that are False in `rows` (B, L) are passed over."""
        other = copy.copy(self)
        other.seen = rows[:, None, None]
        return other

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads (B, H, M, Dh) against (B, H, L, Dh)."""
        mask = None if self.seen is None else self.seen[..., : k.shape[2]]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def project(self, layer: Callable[[Tensor], Projected], x: Tensor) -> Projected:
        """Queries, keys and values of a block's input (B, M, D)."""
        return layer(x)

    def store(self, layer: LayerCache, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Keys and values into a layer's cache, and all that is to be attended over."""
        return layer.write(k, v, rows)

    def merge(self, linear: Callable[[Tensor], Tensor], x: Tensor, skip: Tensor) -> Tensor:
        return linear(torch.cat([x, skip], dim=-1))

    def mlp(self, mlp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
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
    made = ops.project(attn.qkv, x)
    q, k, v = made.chunk(3, dim=-1) if isinstance(made, Tensor) else made  # (B, M, D) each
    if only is not None:
        q = q[:, only]
    if layer is not None:
        assert rows is not None
        k, v = ops.store(layer, k, v, rows)  # (B, L, D) each
    width = q.shape[-1] // attn.num_heads
    q, k, v = (split_heads(part, part.shape[-1] // width) for part in (q, k, v))  # (B, H, M, Dh)
    shared = q.shape[1] // k.shape[1]  # heads that have one key head: they ask as if they were more rows
    mixed = ops.attention(q, k, v) if shared == 1 else by_key_head(ops, q, k, v, shared)
    return attn.proj(mixed.transpose(1, 2).flatten(2))  # (B, M, D)


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)  # (B, H, M, Dh)


def by_key_head(ops: Ops, q: Tensor, k: Tensor, v: Tensor, shared: int) -> Tensor:
    """Attention of `shared` neighbouring heads for each key head; keys and values are not copied."""
    batch, _, rows, width = q.shape
    grouped = q.reshape(batch, -1, shared * rows, width)  # (B, Hk, shared * M, Dh)
    return ops.attention(grouped, k, v).reshape(batch, -1, rows, width)


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


def evaluate_post_norm_stack(
    layers: Iterable[tuple[BlockLayer, LayerCache | None]],
    x: Tensor,
    rows: Rows,
    *,
    only: slice | None = None,
    ops: Ops = TORCH,
) -> Tensor:
    """The same for blocks that normalise their sums, as BERT's do: what comes out is normed already."""
    stack = list(layers)
    for index, (block, layer) in enumerate(stack):
        last = only if index + 1 == len(stack) else None
        mixed = attend(block.attn, x, layer, rows, only=last, ops=ops)
        x = ops.add_norm(x if last is None else x[:, last], mixed, block.norm1)[1]
        x = ops.add_norm(x, ops.mlp(block.mlp, x), block.norm2)[1]
    return x if stack or only is None else x[:, only]
