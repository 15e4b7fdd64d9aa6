"""What a sweep of texts found, in tables and words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recap.bench.measure import times
from recap.evaluation.sweep import SweepRow
from recap.evaluation.text import Estimate
from recap.evaluation.text_points import ERRORS, as_good, speedup

UNCLEAR = "not clear"
NOTE = (
    "Perplexity is the judge's, entropy that of the model's tokens in a text, in nats; ± is a standard error over "
    "texts. Times are medians of runs in turn with all other schedules, and gains those of the pairs. As good means "
    f"no higher perplexity and no lower entropy, both within {ERRORS:g} standard errors of the difference, for "
    "tokens that are drawn alike."
)


def cells_of(row: SweepRow) -> dict[str, str]:
    """A line of a table."""
    steps, quality, equal = (row.against.get(key) for key in ("equal_steps", "equal_quality", "equal_time"))
    full, local = row.counts
    return {
        "schedule": row.schedule,
        "full": str(full),
        "local": str(local) if local else "",
        "perplexity": value_of(row, "perplexity"),
        "entropy": value_of(row, "entropy"),
        **{
            f"distinct {n}": f"{row.figures[f'distinct_{n}']:.3f}"
            for n in (1, 2, 3)
            if f"distinct_{n}" in row.figures
        },
        "s/text": f"{row.seconds:.4g}",
        "processor s": f"{row.phases['processor']:.4g}" if "processor" in row.phases else "",
        "at equal steps": gain_of(steps),
        "as good, fastest plain": f"{gain_of(quality)}, {quality['schedule']}" if quality else "",
        "best plain in time": f"{equal['schedule']}: {WORDS[equal['better']]}" if equal else "",
        "front": "*" if row.front else "",
    }


def conditions(about: Mapping[str, Any]) -> str:
    """What was drawn, and who judged it."""
    prompts = ", behind prompts" if about["prompts"] else ""
    judge = f"judged by {about['judge']}" if about["judge"] else "without a judge"
    return f"{about['num']:,} texts of {about['length']} tokens a point{prompts}, {judge}"


WORDS = {1: "worse than this", 0: "level", -1: "better than this"}


def value_of(row: SweepRow, name: str) -> str:
    return str(Estimate(row.figures[name], row.figures[f"{name}_error"])) if name in row.figures else ""


def gain_of(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return ""
    return times(gain["speedup"]) or UNCLEAR


def verdict(rows: Sequence[SweepRow]) -> str:
    """In plain words: where reuse helps against the best plain decoding, for each way to draw tokens."""
    ways = dict.fromkeys(row.alike for row in rows)
    return "\n\n".join(_verdict(way, [row for row in rows if row.alike == way]) for way in ways)


def _verdict(name: str, rows: Sequence[SweepRow]) -> str:
    reused, plain = ([row for row in rows if row.reused == kind] for kind in (True, False))
    head = f"At {name}"
    if not reused or not plain:
        return f"{head}, {'plain' if plain else 'reused'} schedules alone were measured: nothing to compare."
    if not all("perplexity" in row.figures for row in rows):
        return f"{head}, no judge has read all of the texts, and without perplexity quality cannot be compared."
    return f"{head}, {_in_time(reused)} {_as_good(rows)}"


def _in_time(reused: Sequence[SweepRow]) -> str:
    signs = [row.against["equal_time"]["better"] for row in reused if "equal_time" in row.against]
    if not signs:
        return "no reused schedule is as slow as a plain one, so equal times cannot be compared."
    return (
        f"in equal time {signs.count(1)} of {len(signs)} reused schedules are ahead of the best plain decoding in "
        f"perplexity or entropy and not behind in the other, {signs.count(0)} are level with it or ahead in one and "
        f"behind in the other, and {signs.count(-1)} are behind."
    )


def _as_good(rows: Sequence[SweepRow]) -> str:
    """Which reused schedule, and which plain one, is the fastest that is as good as the best plain one."""
    plain = [row for row in rows if not row.reused and "perplexity" in row.figures]
    best = min(plain, key=lambda row: row.quality)
    head = f"The best plain decoding is {best.schedule} ({_both(best)})."
    equal = [row for row in rows if as_good(row, best)]
    reused, others = ([row for row in equal if row.reused == kind] for kind in (True, False))
    within = f"within {ERRORS:g} standard errors of both"
    if not reused:
        return f"{head} No reused schedule is as good, {within}."
    fast, other = (min(several, key=lambda row: row.seconds) for several in (reused, others))
    found = speedup(fast, other)
    said = "not timed in turn" if found is None else str(found)
    return (
        f"{head} Of those that are as good, {within}, the fastest with reuse is {fast.schedule} ({_both(fast)}) and "
        f"without it {other.schedule} ({_both(other)}): reuse is {said}."
    )


def _both(row: SweepRow) -> str:
    return f"perplexity {value_of(row, 'perplexity')} and entropy {value_of(row, 'entropy')}"
