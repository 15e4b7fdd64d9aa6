"""What a schedule costs on a model: floating-point operations and bytes, from formulas alone.

A multiply-add counts as two operations; norms, activations and softmax are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from recap.core.cache import CacheLayout
from recap.core.schedule import Schedule
from recap.core.steps import Step

RERANKING = "informed"  # the order in which local evaluations choose anew
RANKING = ("confidence", RERANKING)  # those that draw candidates to choose from


class CostModel(Protocol):
    """Sizes of a model, enough to count; all figures are for one image and one guidance branch."""

    def full_flops(self, decoded: int) -> int:
        """A full evaluation with `decoded` tokens known."""

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        """A local evaluation of `rows` target rows; the cache was filled with `context` tokens known."""

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        """The head, for `tokens` rows."""

    def cache_layout(self, schedule: Schedule) -> CacheLayout: ...

    @property
    def full_values(self) -> int:
        """Numbers that the largest full evaluation holds at a time, beside weights and cache."""

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        """Bytes that the head holds while it draws `drawn` tokens; `rows` are images, and images times branches.

        On a GPU (`cuda`) a head may compute more ahead than on a CPU.
        """

    @property
    def draws_candidates(self) -> bool:
        """Whether a full evaluation draws every masked row (confidence order) or only what it commits."""


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


def block_values(width: int, rows: int) -> int:
    """Numbers alive at a time in a block (MLP ratio 4): the input, its norm, and what is inside the MLP, twice."""
    return 10 * width * rows


def logit_bytes(drawn: int, codes: int, rows: tuple[int, int], itemsize: int) -> int:
    """Bytes of a draw from a softmax: logits of all branches, and those of every image in float32, four times."""
    images, branches = rows
    return drawn * codes * (branches * (itemsize + 4) + 4 * 4 * images)


def candidates(schedule: Schedule, context: int, step: Step) -> int:
    """Masked rows from which the first step of a group chooses, `context` having arrived before."""
    return schedule.known + min(schedule.tokens, step.until or schedule.tokens) - context


def ranks(model: CostModel, order: str | None) -> bool:
    """Whether the first step of a group draws more rows than it commits, in an order (None: the model's own)."""
    return model.draws_candidates and order in (None, *RANKING)


def run_cost(model: CostModel, schedule: Schedule, order: str | None = None) -> Cost:
    """What grouped decoding with `schedule` costs for one image, all guidance branches."""
    full = local = head = 0
    size = schedule.known + schedule.tokens
    for context, group in schedule.contexts():
        branches = 2 if group.guided else 1
        first, *others = group.steps
        full += branches * model.full_flops(context)
        head += branches * _first_draw(model, schedule, context, first, order)
        decoded = context + first.tokens
        for step in others:
            local += branches * model.local_flops(context, decoded, group.local_rows(context, size))
            head += branches * model.draw_flops(
                group.local_draws(step, decoded - context, order == RERANKING), step.head_steps
            )
            decoded += step.tokens
    return Cost(full, local, head)


def _first_draw(model: CostModel, schedule: Schedule, decoded: int, step: Step, order: str | None) -> int:
    """The draw after a full evaluation: candidates that are ranked, and what is drawn to be committed."""
    drawn = model.draw_flops(step.tokens, step.head_steps)
    if not ranks(model, order):
        return drawn
    ranked = model.draw_flops(candidates(schedule, decoded, step), step.head_steps)
    return ranked if step.rank_temperature is None else ranked + drawn
