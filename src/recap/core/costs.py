"""What a schedule costs on a model: floating-point operations and cache bytes, from formulas alone.

A multiply-add counts as two operations; norms, activations and softmax are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recap.core.cache import CacheLayout
from recap.core.schedule import Schedule


class CostModel(Protocol):
    """Sizes of a model, enough to count; all figures are for one image and one guidance branch."""

    def full_flops(self, decoded: int) -> int:
        """A full evaluation with `decoded` tokens known."""
        ...

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        """A local evaluation of `rows` target rows; the cache was filled with `context` tokens known."""
        ...

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        """The head, for `tokens` rows."""
        ...

    def cache_layout(self, schedule: Schedule) -> CacheLayout: ...

    @property
    def draws_candidates(self) -> bool:
        """Whether a full evaluation draws every masked row (confidence order) or only what it commits."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """Operations of a run for one image, all guidance branches, by where they are spent."""

    full: int
    local: int
    head: int

    @property
    def transformer(self) -> int:
        return self.full + self.local

    @property
    def total(self) -> int:
        return self.full + self.local + self.head


def block_flops(width: int, rows: int, keys: int) -> int:
    """A transformer block (MLP ratio 4) on `rows` queries against `keys` keys."""
    return 24 * width**2 * rows + 4 * rows * keys * width


def run_cost(model: CostModel, schedule: Schedule) -> Cost:
    """What grouped decoding with `schedule` costs for one image."""
    branches = 2 if schedule.guided else 1
    full = local = head = 0
    for context, group in schedule.contexts():
        first, *others = group.steps
        full += model.full_flops(context)
        head += _first_draw(model, schedule, context, first.tokens, first.head_steps, first.rank_temperature)
        decoded = context + first.tokens
        for step in others:
            local += model.local_flops(context, decoded, step.rows or group.tokens)
            head += model.draw_flops(step.tokens, step.head_steps)
            decoded += step.tokens
    return Cost(branches * full, branches * local, branches * head)


def plain_cost(model: CostModel, schedule: Schedule) -> Cost:
    """What the plain run with as many sub-steps costs: every local evaluation made full."""
    branches = 2 if schedule.guided else 1
    full = head = decoded = 0
    for group in schedule:
        first = group.steps[0]
        for step in group.steps:
            full += model.full_flops(decoded)
            head += _first_draw(model, schedule, decoded, step.tokens, first.head_steps, first.rank_temperature)
            decoded += step.tokens
    return Cost(branches * full, 0, branches * head)


def _first_draw(
    model: CostModel, schedule: Schedule, decoded: int, tokens: int, head_steps: int, rank: float | None
) -> int:
    """The draw after a full evaluation: candidates that are ranked, and what is drawn to be committed."""
    if not model.draws_candidates:
        return model.draw_flops(tokens, head_steps)
    ranked = model.draw_flops(schedule.tokens - decoded, head_steps)
    return ranked if rank is None else ranked + model.draw_flops(tokens, head_steps)
