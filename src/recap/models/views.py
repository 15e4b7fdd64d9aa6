"""Blocks of other people's networks, seen as `core.attention` wants to see them; nothing is copied or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from recap.core.attention import Projected
from recap.models.find import find

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionView:
    """An attention module by its parts, with what other modules do beside the matrix products."""

    num_heads: int
    project: Callable[[Tensor], Projected]
    out: tuple[Call, ...]
    q_norm: Call | None = None  # over the width of a head
    k_norm: Call | None = None
    gain: float = 1.0  # the module's scale of the scores, relative to the usual 1 / sqrt(Dh)
    turn: Call | None = None  # rotary positions of the rows that are being evaluated

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = self.project(x)
        q, k, v = made.chunk(3, dim=-1) if isinstance(made, Tensor) else made  # (B, M, D) each
        for change in (self.q_norm, self.turn):
            q = q if change is None else self._by_head(change, q)
        for change in (self.k_norm, self.turn):
            k = k if change is None else self._by_head(change, k)
        return q if self.gain == 1.0 else q * self.gain, k, v

    def proj(self, x: Tensor) -> Tensor:
        return chain(self.out, x)

    def _by_head(self, change: Call, x: Tensor) -> Tensor:
        return change(x.view(*x.shape[:2], self.num_heads, -1)).flatten(2)  # (B, M, H, Dh) inside


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """A block by its parts."""

    norm1: Call
    attn: Any
    norm2: Call
    parts: tuple[Call, ...]  # of the MLP, one after another

    def mlp(self, x: Tensor) -> Tensor:
        return chain(self.parts, x)


def chain(calls: Iterable[Call], x: Tensor) -> Tensor:
    """One call after another."""
    for call in calls:
        x = call(x)
    return x


def view_blocks(blocks: Iterable[Any], name: str, width: int, purpose: str) -> list[Any]:
    """The blocks of a ViT, timm's kind included: as they are where they are plain, else through a view.

    Layer scale (`ls1`, `ls2`), norms of queries and keys, a scale of the scores and a norm before the output
    projection are honoured. Dropout and drop-path have no part in an evaluation and are passed over.
    """
    return [view_block(block, width, f"{purpose}, for block {i} of {name},") for i, block in enumerate(blocks)]


def view_block(block: Any, width: int, purpose: str) -> Any:
    for path in ("norm1", "norm2", "mlp", "attn.qkv", "attn.proj", "attn.num_heads"):
        find(block, path, purpose)
    attn = block.attn
    inside = attn.num_heads * getattr(attn, "head_dim", width // attn.num_heads)
    if inside != width:
        raise ValueError(f"{purpose} needs heads of {width} numbers together; attn.head_dim makes them {inside}")
    if active(attn, "gate") is not None:
        raise ValueError(f"{purpose} knows no gates, but attn.gate is a {type(attn.gate).__name__}; write an adapter")
    q_norm, k_norm, norm = (active(attn, name) for name in ("q_norm", "k_norm", "norm"))
    first, second = active(block, "ls1"), active(block, "ls2")
    scale = None if getattr(attn, "fused_attn", False) else getattr(attn, "scale", None)  # torch's has its own
    gain = scale * (width / attn.num_heads) ** 0.5 if isinstance(scale, float) else 1.0
    gain = 1.0 if abs(gain - 1.0) < 1e-6 else gain
    if q_norm is k_norm is norm is first is second is None and gain == 1.0:
        return block
    out = tuple(part for part in (norm, attn.proj, first) if part is not None)
    view = AttentionView(attn.num_heads, attn.qkv, out, q_norm, k_norm, gain)
    return BlockView(block.norm1, view, block.norm2, (block.mlp,) if second is None else (block.mlp, second))


def active(owner: Any, name: str) -> Call | None:
    """A part that may be missing, and is as good as missing where it changes nothing."""
    part = getattr(owner, name, None)
    return None if isinstance(part, nn.Identity) else part
