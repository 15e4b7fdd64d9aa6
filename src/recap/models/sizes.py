"""Sizes of a plain stack, for families of one's own, and checks of sizes that say what to change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recap.core.cache import CacheLayout, StackLayout
from recap.core.costs import block_flops, block_values, logit_bytes
from recap.core.schedule import Schedule, Step


def check_positive(config: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a positive integer")


def check_depth(*depths: int) -> None:
    """A file that asks for a million layers is damaged, or means harm."""
    for depth in depths:
        if not isinstance(depth, int) or not 0 <= depth <= 512:
            raise ValueError(f"a stack has {depth!r} layers; expected an integer from 0 to 512")


def check_width(width: int, heads: int) -> None:
    if width < 1 or heads < 1 or width % heads:
        raise ValueError(f"width {width} does not divide into {heads} heads; width must be a multiple of heads")


class IdCosts:
    """What drawing ids costs: logits over the codebook by a head of one hidden layer, for every masked row."""

    __slots__ = ()
    draws_candidates = True
    width: int
    codes: int

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return tokens * (2 * self.width**2 + 2 * self.width * self.codes)

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        return logit_bytes(drawn, self.codes, rows, itemsize)


@dataclass(frozen=True, slots=True)
class Sizes(IdCosts):
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

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        return CacheLayout((StackLayout("blocks", self.depth, self.rows, self.width),))
