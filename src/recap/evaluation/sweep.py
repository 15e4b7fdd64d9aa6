"""Quality against time: points, the front they form, and what reuse gains against the best plain decoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self

from recap.checkpoints.safe_files import read_json
from recap.core.options import SamplingOptions
from recap.evaluation import text_points
from recap.runs.files import write_json

QUALITY = {"images": "fid", "text": "perplexity"}  # by which rows are ranked: smaller is better
ALWAYS = {"fid", "entropy"}  # figures of which every point has one


@dataclass(frozen=True, slots=True)
class Point:
    """One schedule and one seed: figures, and seconds an image or text, in all and by phase.

    `evaluations` are the full and local ones where the schedule's text does not say them, and `alike` is what must be
    equal for schedules of text to be compared. `runs` are the seconds of runs in turn with those of all other points.
    """

    schedule: str
    seed: int
    num: int
    figures: dict[str, float]
    seconds: dict[str, float]  # an image
    warmup: int = 0  # groups without local evaluations at the start, the paper's u
    evaluations: tuple[int, int] | None = None
    alike: str = ""
    runs: dict[str, list[float]] = field(default_factory=dict)  # "wall" and "processor"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        try:
            figures, seconds = ({key: float(x) for key, x in data[part].items()} for part in ("figures", "seconds"))
            if not ALWAYS & figures.keys():
                raise KeyError("fid")
            _ = seconds["total"]  # no row can be without it
            counts = data.get("evaluations")
            runs = {str(key): [float(x) for x in values] for key, values in data.get("runs", {}).items()}
            if not all(math.isfinite(x) and x > 0 for values in runs.values() for x in values):
                raise ValueError("seconds of runs")
            return cls(
                str(data["schedule"]),
                int(data["seed"]),
                int(data["num"]),
                figures,
                seconds,
                int(data["warmup"]),
                None if counts is None else (int(counts[0]), int(counts[1])),
                str(data.get("alike", "")),
                runs,
            )
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"a point of the sweep has no usable {error}: {data}") from error


@dataclass(frozen=True, slots=True)
class SweepRow:
    """All seeds of one schedule together."""

    schedule: str
    quality: float  # FID or perplexity: smaller is better; NaN where nobody was there to judge
    seconds: float  # an image or text
    spread: float | None  # standard deviation of the quality over seeds
    seeds: int
    phases: dict[str, float]
    figures: dict[str, float]
    warmup: int = 0
    front: bool = False
    against: dict[str, Any] = field(default_factory=dict)
    evaluations: tuple[int, int] | None = None
    alike: str = ""
    runs: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, points: Sequence[Point]) -> Self:
        seconds, figures = _means([each.seconds for each in points]), _means([each.figures for each in points])
        judged = next((key for key in QUALITY.values() if key in figures), None)
        many = judged is not None and len(points) > 1
        first = points[0]
        return cls(
            first.schedule,
            math.nan if judged is None else figures[judged],
            seconds["total"],
            stdev(each.figures[str(judged)] for each in points) if many else None,
            len(points),
            seconds,
            figures,
            first.warmup,
            evaluations=first.evaluations,
            alike=first.alike,
            runs=first.runs,
        )

    @property
    def options(self) -> SamplingOptions:
        return SamplingOptions.from_text(self.schedule)

    @property
    def counts(self) -> tuple[int, int]:
        """Full and local evaluations."""
        if self.evaluations is not None:
            return self.evaluations
        options = self.options
        return options.full or 0, options.local or 0

    @property
    def reused(self) -> bool:
        return self.counts[1] > 0

    @property
    def steps(self) -> int:
        return sum(self.counts)


def _means(several: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of every value that all have; standard errors become those of means."""
    names, found = set.intersection(*map(set, several)), {}
    for name in (name for name in several[0] if name in names):
        values = [each[name] for each in several]
        found[name] = math.hypot(*values) / len(values) if name.endswith("_error") else mean(values)
    return found


def rows_of(points: Iterable[Point]) -> list[SweepRow]:
    """One row a schedule, in the order of their first points; marks the front and compares with plain decoding."""
    by_schedule: dict[str, list[Point]] = {}
    for point in points:
        by_schedule.setdefault(point.schedule, []).append(point)
    rows = [SweepRow.of(several) for several in by_schedule.values()]
    if rows and "entropy" in rows[0].figures:
        return [
            replace(row, front=text_points.unbeaten(row, rows), against=text_points.against_plain(row, rows))
            for row in rows
        ]
    margin = noise(rows)
    best = front([(row.seconds, row.quality) for row in rows])
    return [
        replace(row, front=index in best, against=against_plain(row, rows, margin) if row.reused else {})
        for index, row in enumerate(rows)
    ]


def front(places: Sequence[tuple[float, float]]) -> set[int]:
    """The indices of points (time, quality) that no other point beats in both; smaller is better."""
    best, lowest = set(), math.inf
    for index in sorted(range(len(places)), key=lambda i: places[i]):
        if places[index][1] < lowest:
            lowest = places[index][1]
            best.add(index)
    return best


def noise(rows: Iterable[SweepRow]) -> float:
    """How much of a difference in quality may be chance: two standard deviations over seeds, 0 if none is known."""
    spreads = [row.spread for row in rows if row.spread is not None]
    return 2 * math.sqrt(mean(spread**2 for spread in spreads)) if spreads else 0.0


def against_plain(row: SweepRow, rows: Sequence[SweepRow], margin: float = 0.0) -> dict[str, Any]:
    """What reuse gains: against plain decoding of equal steps, of equal quality, and of equal time.

    Of equal quality is the fastest plain schedule that is as good or worse by less than `margin`; of equal time, the
    best plain one that takes no longer. Only schedules that draw the same way count, so that reuse is compared with
    nothing else.
    """
    own, plain = row.options, [other for other in rows if not other.reused and _draws(other) == _draws(row)]
    same = [
        other
        for other in plain
        if other.steps == row.steps
        and (other.options.head_steps or (None,))[0] == (own.head_steps or (None,))[0]  # after full evaluations
        and other.options.solver == own.solver
    ]
    as_good = [other for other in plain if other.quality <= row.quality + margin]
    in_time = [other for other in plain if other.seconds <= row.seconds]
    result: dict[str, Any] = {}
    for other in same[:1]:
        speedup = other.seconds / row.seconds
        result["equal_steps"] = {"schedule": other.schedule, "speedup": speedup, "quality": other.quality}
    if as_good:
        other = min(as_good, key=lambda other: other.seconds)
        result["equal_quality"] = {"schedule": other.schedule, "speedup": other.seconds / row.seconds}
    if in_time:
        other = min(in_time, key=lambda other: other.quality)
        gain = other.quality - row.quality
        result["equal_time"] = {"schedule": other.schedule, "quality": other.quality, "gain": gain}
    return result


def _draws(row: SweepRow) -> tuple[Any, ...]:
    """How values are drawn, apart from a diffusion head's steps."""
    options = row.options
    return options.preset, options.guidance, options.temperature, options.choice_temperature, options.order


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was measured of one model and how: a file that is whole after every point."""

    about: dict[str, Any]
    points: list[Point]

    @property
    def modality(self) -> str:
        return str(self.about.get("modality", "images"))

    @property
    def rows(self) -> list[SweepRow]:
        return rows_of(self.points)

    @classmethod
    def read(cls, path: Path) -> Self:
        content = read_json(path)
        try:
            points = [Point.from_json(point) for point in content.pop("points")]
            content.pop("rows", None)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} is no result of `recap sweep` ({error!r}); mend or remove it") from error
        return cls(content, points)

    def write(self, path: Path) -> None:
        """The rows are there for others to read."""
        points, rows = ([asdict(each) for each in several] for several in (self.points, self.rows))
        for row in rows:
            row["quality"] = None if math.isnan(row["quality"]) else row["quality"]
        write_json(path, {**self.about, "points": points, "rows": rows})
