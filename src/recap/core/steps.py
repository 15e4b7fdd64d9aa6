"""What a sub-step and a group are: plain data, and the bounds of their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from recap.core.bounds import SCALE, TOKENS

SOLVERS = ("ancestral", "ddim")  # of diffusion heads
CONFIDENCE = ("probability", "tempered", "margin", "entropy")  # what a head of ids may be sure by


Bound = tuple[Callable[[Any], bool], str]  # whether a value may be, and what may be


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole(least: int, most: int = TOKENS) -> Bound:
    return lambda value: type(value) is int and least <= value <= most, f"an integer from {least} to {most}"


def between(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and least <= value <= most


def one_of(words: Collection[str]) -> Bound:
    return lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}"


BOUNDS: dict[str, Bound] = {
    # logits over less would be infinite
    "temperature": (
        lambda value: between(1 / SCALE, SCALE)(value) or between(0, 0)(value),
        f"0 (greedy), or from {1 / SCALE:g} to {SCALE:g} (1.0 leaves logits alone)",
    ),
    "choice_temperature": (between(0, SCALE), f"from 0 (greedy) to {SCALE:g}"),
    "guidance": (between(-SCALE, SCALE), f"a finite number of at most {SCALE:g} (1.0 means no guidance)"),
    "head_steps": whole(2),
    "solver": one_of(SOLVERS),
    "confidence": one_of(CONFIDENCE),
    "top_k": whole(1),
    "top_p": (lambda value: is_number(value) and 0 < value <= 1, "a probability above 0"),
    "until": whole(0),
    "threshold": (lambda value: is_number(value) and 0 < value < 1, "a probability between 0 and 1"),
}


def check_value(name: str, value: object, bound: Bound) -> None:
    fits, expected = bound
    if not fits(value):
        raise ValueError(f"{name} is {value!r}; it must be {expected}")


@dataclass(frozen=True, slots=True)
class Step:
    """One sub-step: how many tokens it commits, and how they are drawn.

    `temperature` is the paper's tau_1 (for MAR the temperature of the diffusion noise) and
    `choice_temperature` its tau_2, which only the first sub-step of a group uses. `rank_temperature` is the
    temperature of a separate draw that only ranks positions; None ranks the very values that are committed.
    `solver` is how a diffusion head takes its steps: as published, or without noise by DDIM. With a `threshold`,
    candidates that have at least this probability are committed too, so that `tokens` is the least number, and
    later sub-steps whose tokens are there by then do nothing; images are then drawn one at a time. Ids are drawn
    among the likeliest `top_k`, or those that have `top_p` together, at most. Their `confidence` is the
    log-probability under the model's own logits, or of the tempered and filtered ones the probability ("tempered"),
    the lead of the likeliest id ("margin") or the negative entropy ("entropy"). Candidates end `until` tokens behind
    those known before the run (0: with the last one), so that text is written block by block.
    """

    tokens: int
    temperature: float = 1.0
    rank_temperature: float | None = None
    choice_temperature: float = 0.0
    guidance: float = 1.0
    head_steps: int = 100
    solver: str = "ancestral"
    threshold: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    confidence: str = "probability"
    until: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"a sub-step commits {self.tokens} tokens; every sub-step needs at least one")
        for name, bound in BOUNDS.items():
            if (value := getattr(self, name)) is not None:
                check_value(name, value, bound)
        if self.rank_temperature is not None:
            check_value("rank_temperature", self.rank_temperature, BOUNDS["temperature"])
        if self.threshold is not None and self.confidence != "probability":
            raise ValueError(
                f"a threshold is one of probabilities, but confidence is {self.confidence!r}; leave it out"
            )

    @property
    def ranking(self) -> Step:
        """The draw by which positions are ranked."""
        return self if self.rank_temperature is None else replace(self, temperature=self.rank_temperature)


@dataclass(frozen=True, slots=True)
class Group:
    """One full evaluation and the local evaluations that reuse its cache.

    Its target set has the `target` rows that come first after the full evaluation; at least those that it commits,
    which is what 0 means. Local evaluations recompute these, and `before` rows decoded last and `after` masked ones
    that come next. In a `coupled` group a position has the same random numbers whenever it is drawn or ranked, so
    that a value changes only where its distribution does.
    """

    steps: tuple[Step, ...]
    target: int = 0
    before: int = 0
    after: int = 0
    coupled: bool = False

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a group has no steps; the first step of a group follows its full evaluation")
        if self.target and self.target < self.tokens:
            raise ValueError(
                f"a target set of {self.target} rows is too small for the {self.tokens} tokens of a group"
            )

    @property
    def rows(self) -> int:
        """Rows of the target set, as far as so many are left."""
        return self.target or self.tokens

    def recomputed(self, target: slice, size: int) -> slice:
        """The rows that a local evaluation recomputes for a target set, of `size` that there are."""
        return slice(max(0, target.start - self.before), min(size, target.stop + self.after))

    def local_rows(self, context: int, size: int) -> int:
        """How many these are, of `size`, where `context` tokens were decoded before the group."""
        rows = self.recomputed(slice(context, min(context + self.rows, size)), size)
        return rows.stop - rows.start

    def local_draws(self, step: Step, done: int, reranks: bool = False) -> int:
        """Rows that a local sub-step draws at most, once the group has committed `done` tokens.

        All that is left of the target set, if that is more than what is committed, or ranked anew in any case.
        """
        return self.rows - done if self.target or reranks else step.tokens

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(step.tokens for step in self.steps)

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def local(self) -> int:
        return len(self.steps) - 1

    @property
    def guided(self) -> bool:
        """Whether any of its steps needs the unconditional branch."""
        return any(step.guidance != 1.0 for step in self.steps)
