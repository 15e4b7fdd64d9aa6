"""Schedules of text against each other: perplexity and entropy together, and times that were taken in turn.

Low perplexity is repetition as often as it is quality. So of two schedules one is as good as the other only if its
perplexity is no higher *and* its entropy no lower, both but for two standard errors of the difference; and schedules
that draw at another temperature, or from fewer tokens, are not compared at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recap.bench.pairs import Speedup
from recap.core.schedule import Schedule

if TYPE_CHECKING:
    from recap.evaluation.sweep import SweepRow

ERRORS = 2.0  # standard errors within which figures count as equal


def alike(schedule: Schedule) -> str:
    """What must be equal for schedules to be compared: how tokens are drawn."""
    ends = schedule.steps[0], schedule.steps[-1]
    found = [f"temperature {'/'.join(dict.fromkeys(f'{step.temperature:g}' for step in ends))}"]
    if schedule.guided:
        found.append(f"guidance {'/'.join(dict.fromkeys(f'{step.guidance:g}' for step in ends))}")
    if ends[0].top_k is not None:
        found.append(f"top_k {ends[0].top_k}")
    if ends[0].top_p is not None and ends[0].top_p < 1:
        found.append(f"top_p {ends[0].top_p:g}")
    return ", ".join(found)


def apart(one: SweepRow, other: SweepRow, figure: str) -> int | None:
    """1 if a figure of the first is clearly higher, -1 if it is clearly lower, else 0; None where it is not known."""
    known = [row.figures.get(name) for row in (one, other) for name in (figure, f"{figure}_error")]
    if any(value is None or math.isnan(value) for value in known):
        return None
    value, error, theirs, their_error = (float(value) for value in known if value is not None)
    far = value - theirs
    return 0 if abs(far) <= ERRORS * math.hypot(error, their_error) else 1 if far > 0 else -1


def better(one: SweepRow, other: SweepRow) -> int | None:
    """1 if the first is ahead in perplexity or entropy and not behind in the other, -1 for the reverse, else 0."""
    signs = apart(one, other, "perplexity"), apart(one, other, "entropy")
    if signs[0] is None or signs[1] is None:
        return None
    gains = {-signs[0], signs[1]} - {0}
    return gains.pop() if len(gains) == 1 else 0


def as_good(one: SweepRow, other: SweepRow) -> bool:
    """Whether the first has no higher perplexity and no lower entropy than the other, within errors."""
    return apart(one, other, "perplexity") in (-1, 0) and apart(one, other, "entropy") in (0, 1)


def speedup(row: SweepRow, other: SweepRow) -> Speedup | None:
    """How many times as fast a schedule is as another one, where both were timed in the same turns."""
    names = ("wall", "processor")
    ours, theirs = ([each.runs.get(name, []) for name in names] for each in (row, other))
    if not ours[0] or [*map(len, ours)] != [*map(len, theirs)]:
        return None
    ratios = [tuple(b / a for a, b in zip(*runs, strict=True)) for runs in zip(ours, theirs, strict=True)]
    return Speedup(*ratios)


def against_plain(row: SweepRow, rows: Sequence[SweepRow]) -> dict[str, Any]:
    """What reuse gains: against plain decoding of as many steps, the fastest that is as good, and the best in time.

    Plain decoding may choose in any order and in blocks: it has to be the best there is.
    """
    if not row.reused:
        return {}
    plain = [other for other in rows if not other.reused and other.alike == row.alike]
    result: dict[str, Any] = {}
    if same := [other for other in plain if other.steps == row.steps]:
        own = row.options.preset  # the same preset where there is one, else whatever comes first
        other = next((each for each in same if each.options.preset == own), same[0])
        result["equal_steps"] = {"schedule": other.schedule, **_gain(row, other)}
    if enough := [other for other in plain if as_good(other, row)]:
        other = min(enough, key=lambda other: other.seconds)
        result["equal_quality"] = {"schedule": other.schedule, **_gain(row, other)}
    if in_time := [other for other in plain if other.seconds <= row.seconds and better(row, other) is not None]:
        other = min(in_time, key=lambda other: other.quality)
        result["equal_time"] = {"schedule": other.schedule, "better": better(row, other)}
    return result


def _gain(row: SweepRow, other: SweepRow) -> dict[str, Any]:
    found = speedup(row, other)
    if found is None:
        return {"speedup": None}
    return {"speedup": found.median, "said": str(found)}


def unbeaten(row: SweepRow, rows: Sequence[SweepRow]) -> bool:
    """Whether no schedule that draws alike is as fast, as likely and as rich, and ahead in one of these."""

    def place(each: SweepRow) -> tuple[float, float, float]:
        return each.seconds, each.quality, -each.figures["entropy"]

    own = place(row)
    others = [place(other) for other in rows if other.alike == row.alike]
    beaten = any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in others)
    return not math.isnan(row.quality) and not beaten
