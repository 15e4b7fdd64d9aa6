"""Sizes of a bidirectional language model, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recap.core.bounds import COUNT, LAYERS, SCALE, TOKENS, WIDTH, bounded, check_bounds
from recap.core.cache import CacheLayout, StackLayout
from recap.core.schedule import Schedule
from recap.models.sizes import IdCosts, check_width

Precision = Literal["float32", "model"]


@dataclass(frozen=True, slots=True)
class TextConfig(IdCosts):
    """A Llama without a causal mask: RMS norms, rotary positions, gated MLPs, maybe fewer key heads than heads.

    `codes` are the rows of the embedding, of which `mask_id` stands where nothing is written yet and is never drawn.
    Texts have at most `num_tokens` tokens and end with `eos_id`. A network of LLaDA's kind rotates in float32 and
    predicts a position at its own row; one of Dream's rotates in its own precision (`rotary`), has biases for
    queries, keys and values, and predicts a position at the row before it (`shift`). `tied` means that the
    embedding is the head too. The defaults are LLaDA-8B.
    """

    width: int = bounded(4096, 1, WIDTH)
    depth: int = bounded(32, 0, LAYERS)
    heads: int = bounded(32, 1, WIDTH)
    kv_heads: int = bounded(32, 1, WIDTH)
    hidden: int = bounded(12288, 1, WIDTH)
    codes: int = bounded(126464, 1, COUNT)
    num_tokens: int = bounded(4096, 1, TOKENS)
    mask_id: int = bounded(126336, 0, COUNT)
    eos_id: int = bounded(126081, 0, COUNT)
    theta: float = bounded(500000.0, 1.0, 100 * SCALE)
    eps: float = bounded(1e-5, SCALE**-2, 1.0)
    qkv_bias: bool = False
    tied: bool = False
    shift: bool = False
    rotary: Precision = "float32"

    def __post_init__(self) -> None:
        check_bounds(self)
        check_width(self.width, self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} key heads equally; use a divisor")
        if self.width // self.heads % 2:
            raise ValueError(f"heads of {self.width // self.heads} numbers cannot be rotated in pairs; use even ones")
        for name in ("mask_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.codes:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be one of {self.codes} ids")
        if self.rotary not in ("float32", "model"):
            raise ValueError(f'rotary is {self.rotary!r}; it must be "float32" or "model"')

    @property
    def prefix(self) -> int:  # type: ignore[override]
        return 0

    @property
    def kv_width(self) -> int:
        return self.width // self.heads * self.kv_heads

    @property
    def stacks(self) -> dict[str, int]:
        return {"blocks": self.depth}

    def block_flops(self, rows: int) -> int:
        linear = 2 * self.width**2 + 2 * self.width * self.kv_width + 3 * self.width * self.hidden
        return self.depth * (2 * linear * rows + 4 * rows * self.rows * self.width)

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        """Where a row predicts the position behind it, the rows before those that are left are computed too."""
        return self.block_flops(rows + (max(0, context + rows - decoded) if self.shift else 0))

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return tokens * 2 * self.width * self.codes

    @property
    def full_values(self) -> int:
        return (4 * self.width + 2 * self.hidden) * self.rows

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        return CacheLayout((StackLayout("blocks", self.depth, self.rows, self.kv_width),))
