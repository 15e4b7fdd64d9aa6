"""Sizes of a plain stack, for families of one's own, and checks of sizes that say what to change."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from recap.core.bounds import COUNT, LAYERS, TOKENS, WIDTH, bounded, check_bounds, check_number
from recap.core.cache import CacheLayout, StackLayout
from recap.core.costs import block_flops, block_values, logit_bytes
from recap.core.schedule import Schedule
from recap.core.steps import Step


def check_width(width: int, heads: int) -> None:
    check_number("width", width, 1, WIDTH)
    if heads < 1 or width % heads:
        raise ValueError(f"width {width} does not divide into {heads} heads; width must be a multiple of heads")


class IdCosts:
    """What stacks of blocks over all rows cost, and ids drawn by a head of one hidden layer for every masked row."""

    __slots__ = ()
    draws_candidates = True
    prefix = 1  # rows before the tokens
    num_tokens: int
    width: int
    codes: int

    @property
    def stacks(self) -> dict[str, int]:
        """Layers of each stack by its name."""
        raise NotImplementedError

    @property
    def pad(self) -> int:
        """Width of what is cached beside the stacks."""
        return 0

    @property
    def rows(self) -> int:
        """Rows of the cache."""
        return self.prefix + self.num_tokens

    def block_flops(self, rows: int) -> int:
        """All blocks, on `rows`."""
        return sum(self.stacks.values()) * block_flops(self.width, rows, self.rows)

    def full_flops(self, decoded: int) -> int:
        return self.block_flops(self.rows)

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        return self.block_flops(rows)

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return tokens * (2 * self.width**2 + 2 * self.width * self.codes)

    @property
    def full_values(self) -> int:
        return block_values(self.width, self.rows)

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        return logit_bytes(drawn, self.codes, rows, itemsize)

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        stacks = (StackLayout(name, layers, self.rows, self.width) for name, layers in self.stacks.items())
        return CacheLayout(tuple(stacks), self.pad)


@dataclass(frozen=True, slots=True)
class Sizes(IdCosts):
    """What the loop, the cache and the cost formulas ask of a stack of blocks over ids.

    Ids from 0 to `codes` - 1 may be drawn; `mask_id` stands where none is known yet. `prefix` rows come before the
    tokens in every evaluation (a class token, say) and are not drawn.
    """

    num_tokens: int = bounded(MISSING, 1, TOKENS)
    codes: int = bounded(MISSING, 1, COUNT)
    mask_id: int = bounded(MISSING, 0, COUNT)
    width: int = bounded(MISSING, 1, WIDTH)
    depth: int = bounded(MISSING, 0, LAYERS)
    classes: int = bounded(0, 0, COUNT)
    prefix: int = bounded(0, 0, TOKENS)
    kv_width: int = bounded(0, 0, WIDTH)  # of keys and values, where it is not the width

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def stacks(self) -> dict[str, int]:
        return {"blocks": self.depth}

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return tokens * 2 * self.width * self.codes

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        return CacheLayout((StackLayout("blocks", self.depth, self.rows, self.kv_width or self.width),))
