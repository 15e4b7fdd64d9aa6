"""How many: a schedule is plain data that says what every sub-step of a run does.

Everything that varies over a run is resolved here into numbers, so the sampling loop has no formulas and
a strategy found by search (AutoNAT) is only another list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Required, TypedDict, Unpack

from recap.core.counts import cosine_counts, group_lengths, linear_counts, power_counts
from recap.core.steps import Group, Step


class Ramp(NamedTuple):
    """A value that moves linearly with the share of tokens decoded after a sub-step."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A whole run: groups in order, which together commit every token once.

    `known` tokens are there before the run begins; it commits the others. What follows the share of decoded tokens
    counts the known ones too.
    """

    groups: tuple[Group, ...]
    known: int = 0

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a schedule has no groups; build one with recap.cosine(256, full=64) or the like")
        if self.known < 0:
            raise ValueError(f"known is {self.known}; it is the number of tokens known before the run, 0 or more")

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    def __str__(self) -> str:
        return f"{self.full}+{self.local}" if self.local else f"{self.full}"

    def __repr__(self) -> str:
        first, last = (self.steps[place].guidance for place in (0, -1))
        parts = [
            f"{self.tokens} tokens",
            f"after {self.known} known ones" if self.known else "",
            f"reuse from group {self.warmup + 1}" if self.local else "plain",
            f"guidance {first:.3g}" + (f" to {last:.3g}" if first != last else "") if self.guided else "",
        ]
        return f"<Schedule {self}: {', '.join(part for part in parts if part)}>"

    def canonical_text(self) -> str:
        """Everything in it as text, by which two schedules can be told apart."""
        return f"Schedule(groups={self.groups!r}, known={self.known!r})"

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for group in self.groups for step in group.steps)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(step.tokens for step in self.steps)

    @property
    def tokens(self) -> int:
        return sum(self.sizes)

    @property
    def full(self) -> int:
        return len(self.groups)

    @property
    def local(self) -> int:
        return sum(group.local for group in self.groups)

    @property
    def warmup(self) -> int:
        """How many groups at the start have no local evaluation (the paper's u)."""
        return next((i for i, group in enumerate(self.groups) if group.local), self.full)

    @property
    def guided(self) -> bool:
        return any(group.guided for group in self.groups)

    @property
    def thresholds(self) -> bool:
        """Whether the number of evaluations depends on how sure the model is."""
        return any(step.threshold is not None for step in self.steps)

    def contexts(self) -> Iterator[tuple[int, Group]]:
        """Each group with the number of tokens decoded before it."""
        decoded = self.known
        for group in self.groups:
            yield decoded, group
            decoded += group.tokens

    def with_guidance(self, guidance: float | Ramp | Sequence[float]) -> Schedule:
        """The same schedule under another guidance scale (1.0 for none)."""
        values = iter(_guidance(guidance, self.sizes, self.known))
        groups = (
            replace(group, steps=tuple(replace(step, guidance=next(values)) for step in group.steps))
            for group in self.groups
        )
        return replace(self, groups=tuple(groups))

    def plain(self) -> Schedule:
        """The same sub-steps without reuse: every local evaluation made full."""
        return replace(
            self,
            groups=tuple(
                Group((replace(group.steps[0], tokens=step.tokens, guidance=step.guidance, until=step.until),))
                for group in self.groups
                for step in group.steps
            ),
        )

    def knowing(self, known: int) -> Schedule:
        """The same schedule for a run that begins with `known` tokens."""
        if self.known not in (0, known):
            raise ValueError(
                f"the schedule is for runs that begin with {self.known} known tokens but {known} are known; "
                f"build it with known={known}"
            )
        return self if known == self.known else replace(self, known=known)


class Draws(TypedDict, total=False):
    """What every schedule builder takes beside its rule for the counts.

    `full` and `local` are numbers of evaluations; by default half of all sub-steps pass before the first local one,
    or `warmup` groups (u), fewer where the local evaluations need the room. `chain` is the number of local
    evaluations a group may have. Values are a number or one number for each sub-step; a single `choice_temperature`
    decays linearly to 0 over the groups; `guidance` may be a `Ramp`. `head_steps` are the diffusion steps after full
    and after local evaluations. Of groups with local evaluations the target set has `target` times as many rows as
    they commit; for `coupled` see `Group`. `known` tokens are there before the run begins, beside those that the
    schedule decodes.
    """

    full: Required[int]
    local: int
    warmup: int | None
    chain: int
    temperature: float | Sequence[float]
    rank_temperature: float | None
    choice_temperature: float | Sequence[float]
    guidance: float | Ramp | Sequence[float]
    head_steps: tuple[int, int]
    solver: str
    target: float
    coupled: bool
    known: int


def cosine(tokens: int = 256, **options: Unpack[Draws]) -> Schedule:
    """The cosine schedule of MaskGIT, MAGE and MAR: few tokens first, many at the end."""
    return _build(tokens, cosine_counts, **options)


def linear(tokens: int = 256, **options: Unpack[Draws]) -> Schedule:
    """As many tokens in every sub-step as in any other."""
    return _build(tokens, linear_counts, **options)


def power(tokens: int = 256, exponent: float = 2.5, **options: Unpack[Draws]) -> Schedule:
    """The polynomial schedule of MaskGIT-r (appendix A of the paper)."""
    return _build(tokens, lambda n, steps: power_counts(n, steps, exponent), **options)


def from_counts(tokens: int, counts: Sequence[int], **options: Any) -> Schedule:
    """A schedule from the number of tokens of every sub-step; plain decoding unless `full` says otherwise."""
    counts = list(counts)
    if sum(counts) != tokens:
        raise ValueError(f"the counts add up to {sum(counts)} but there are {tokens} tokens; they must be equal")

    def rule(_: int, steps: int) -> list[int]:
        if steps != len(counts):
            raise ValueError(f"{len(counts)} counts were given for {steps} sub-steps; full + local must be equal")
        return counts

    return _build(tokens, rule, **{"full": len(counts), **options})


def _build(tokens: int, rule: Callable[[int, int], list[int]], **given: Unpack[Draws]) -> Schedule:
    if "full" not in given or given.keys() - Draws.__annotations__.keys():
        raise TypeError(f"a schedule takes {', '.join(Draws.__annotations__)}, and full always; given are {given}")
    lengths = group_lengths(given["full"], given.get("local", 0), given.get("warmup"), given.get("chain", 1))
    steps, known = sum(lengths), given.get("known", 0)
    if steps > tokens:
        raise ValueError(f"{steps} sub-steps have no room in {tokens} tokens; every sub-step commits at least one")
    sizes = rule(tokens, steps)
    warmth = _each(given.get("temperature", 1.0), steps, "temperature")
    scales = _guidance(given.get("guidance", 1.0), sizes, known)
    choice = given.get("choice_temperature", 0.0)
    if not isinstance(choice, Sequence):  # linear decay over the groups, so that the last one is greedy
        choice = [choice * (1 - (i + 1) / len(lengths)) for i, length in enumerate(lengths) for _ in range(length)]
    choices = _each(choice, steps, "choice_temperature")
    rank, head_steps = given.get("rank_temperature"), given.get("head_steps", (100, 50))
    solver = given.get("solver", "ancestral")
    groups, first = [], 0
    for length in lengths:
        group = [
            Step(sizes[s], warmth[s], rank, choices[first], scales[s], head_steps[s > first], solver)
            for s in range(first, first + length)
        ]
        groups.append(
            Group(tuple(group), coupled=given.get("coupled", False))
            if length == 1
            else _reusing(tuple(group), sum(sizes[first:]), given)
        )
        first += length
    return Schedule(tuple(groups), known)


def _reusing(steps: tuple[Step, ...], masked: int, given: Draws) -> Group:
    """A group with local evaluations, at whose beginning so many tokens are masked."""
    tokens = sum(step.tokens for step in steps)
    target = min(math.ceil(given.get("target", 1.0) * tokens), masked)
    return Group(steps, target if target > tokens else 0, coupled=given.get("coupled", False))


def _guidance(guidance: float | Ramp | Sequence[float], sizes: Sequence[int], known: int) -> list[float]:
    if not isinstance(guidance, Ramp):
        return _each(guidance, len(sizes), "guidance")
    total, decoded, values = known + sum(sizes), known, []
    for size in sizes:
        decoded += size
        values.append(guidance.start + (guidance.end - guidance.start) * decoded / total)
    return values


def _each(value: float | Sequence[float], steps: int, name: str) -> list[float]:
    """One value for each sub-step."""
    if not isinstance(value, Sequence):
        return [float(value)] * steps
    if len(value) != steps:
        raise ValueError(f"{name} has {len(value)} values for {steps} sub-steps; give one for each, or one number")
    return [float(v) for v in value]
