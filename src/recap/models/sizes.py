"""Sizes of a plain stack, for families of one's own."""

from __future__ import annotations

from dataclasses import dataclass

from recap.core.cache import CacheLayout, StackLayout
from recap.core.costs import block_flops, block_values, logit_bytes
from recap.core.schedule import Schedule, Step
from recap.models.checks import check_depth, check_positive


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the loop, the cache and the cost formulas ask of a stack of blocks over ids.

    Ids from 0 to `codes` - 1 may be drawn; `mask_id` stands where none is known yet. `prefix` rows come before the
    tokens in every evaluation (a class token, say) and are not drawn.
    """

    num_tokens: int
    codes: int
    mask_id: int
    width: int
    depth: int
    classes: int = 0
    prefix: int = 0

    def __post_init__(self) -> None:
        check_positive(self, ("num_tokens", "codes", "width"))
        check_depth(self.depth)

    draws_candidates = True

    @property
    def rows(self) -> int:
        """Rows of the cache."""
        return self.prefix + self.num_tokens

    def full_flops(self, decoded: int) -> int:
        return self.depth * block_flops(self.width, self.rows, self.rows)

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        return self.depth * block_flops(self.width, rows, self.rows)

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return tokens * 2 * self.width * self.codes

    @property
    def full_values(self) -> int:
        return block_values(self.width, self.rows)

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, ahead: int) -> int:
        return logit_bytes(drawn, self.codes, rows, itemsize)

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        return CacheLayout((StackLayout("blocks", self.depth, self.rows, self.width),))
