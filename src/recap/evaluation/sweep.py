"""Quality against time: points, the front they form, and what reuse gains against the best plain decoding."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self

from recap.core.presets import PAPER_ROWS
from recap.evaluation.settings import Setting
from recap.files import written_whole
from recap.limits import parse_json, read_text

# what the paper leaves open: longer chains, which rows are renewed, where local evaluations stand, head steps
OPEN = {
    "all": (
        "32+32:u=0",
        "22+42:u=0,chain=2",
        "16+48:u=0,chain=3",
        "8+56:u=0,chain=7",
        "16+48:u=0,chain=3,renew=arrived",
        "48+16:u=0",
        "48+16:u=32",
        "48+16:u=0,spread",
    ),
    "mar": ("64:head=100", "64:head=50", "64:head=25", "32+32:head=100/100", "32+32:head=100/25", "32+32:head=50/25"),
}
PLAIN = {
    "maskgit": (12, 16, 20, 24, 32),
    "mage": (20, 30, 40, 50, 60, 70, 80, 100, 128),
    "mar": (20, 48, 64, 128, 256),
}
USUAL = (
    "8",
    "12",
    "16",
    "24",
    "32",
    "48",
    "64",
    "12+4",
    "16+16",
    "24+8",
    "24+24",
    "32+16",
    "32+32",
    "48+16",
    "48+48",
)
PRESETS = ("usual", "paper", "open")


def preset_settings(preset: str, family: str, tokens: int) -> list[Setting]:
    """The settings that a preset means for a family; those with more steps than tokens are left out."""
    if preset == "usual":
        texts: list[str] = list(USUAL)
    elif preset == "open":
        texts = [*OPEN["all"], *OPEN.get(family, ())]
    elif preset == "paper":
        texts = [str(steps) for steps in PLAIN[family]]
        rows = [row for row in PAPER_ROWS if row.model.startswith(family)]
        texts += [f"{row.full}+{row.local}:u={row.plain}" for row in rows]
    else:
        raise ValueError(f"preset is {preset!r}; it must be one of {', '.join(PRESETS)}")
    settings = [Setting.parse(text) for text in dict.fromkeys(texts)]
    return [setting for setting in settings if setting.full + setting.local <= tokens]


@dataclass(frozen=True, slots=True)
class Point:
    """One setting and one seed: figures, and seconds an image, in all and by phase."""

    setting: str
    seed: int
    num: int
    figures: dict[str, float]
    seconds: dict[str, float]  # an image
    plain: int = 0  # groups without local evaluations at the start, the paper's u

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        try:
            return cls(
                str(data["setting"]),
                int(data["seed"]),
                int(data["num"]),
                {key: float(value) for key, value in data["figures"].items()},
                {key: float(value) for key, value in data["seconds"].items()},
                int(data["plain"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"a point has no usable {error}: {data}") from error


@dataclass(frozen=True, slots=True)
class Row:
    """All seeds of one setting together."""

    setting: str
    quality: float
    seconds: float  # an image
    spread: float | None  # standard deviation of the quality over seeds
    seeds: int
    phases: dict[str, float]
    figures: dict[str, float]
    plain: int = 0
    front: bool = False
    against: dict[str, Any] = field(default_factory=dict)

    @property
    def parsed(self) -> Setting:
        return Setting.parse(self.setting)

    @property
    def reused(self) -> bool:
        return self.parsed.local > 0

    @property
    def steps(self) -> int:
        return self.parsed.full + self.parsed.local


def rows_of(points: Iterable[Point], metric: str = "fid") -> list[Row]:
    """One row a setting, in the order of their first points; marks the front and compares with plain decoding."""
    by_setting: dict[str, list[Point]] = {}
    for point in points:
        by_setting.setdefault(point.setting, []).append(point)
    rows = []
    for setting, several in by_setting.items():
        for point in several:
            if metric not in point.figures or "total" not in point.seconds:
                raise ValueError(f"a point of {setting} has no {metric} or no total seconds; measure it again")
        values = [point.figures[metric] for point in several]
        parts = set.intersection(*(set(point.seconds) for point in several))
        phases = {
            name: mean(point.seconds[name] for point in several) for name in several[0].seconds if name in parts
        }
        names = set.intersection(*(set(point.figures) for point in several))
        rows.append(
            Row(
                setting,
                mean(values),
                phases["total"],
                stdev(values) if len(values) > 1 else None,
                len(several),
                phases,
                {name: mean(point.figures[name] for point in several) for name in sorted(names)},
                several[0].plain,
            )
        )
    margin = noise(rows)
    best = front([(row.seconds, row.quality) for row in rows])
    return [
        Row(
            **{name: getattr(row, name) for name in Row.__slots__ if name not in ("front", "against")},
            front=index in best,
            against=against_plain(row, rows, margin) if row.reused else {},
        )
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


def noise(rows: Iterable[Row]) -> float:
    """How much of a difference in quality may be chance: two standard deviations over seeds, 0 if none is known."""
    spreads = [row.spread for row in rows if row.spread is not None]
    return 2 * math.sqrt(mean(spread**2 for spread in spreads)) if spreads else 0.0


def against_plain(row: Row, rows: Sequence[Row], margin: float = 0.0) -> dict[str, Any]:
    """What reuse gains: against plain decoding of equal steps, of equal quality, and of equal time.

    Of equal quality is the fastest plain setting that is as good or worse by less than `margin`; of equal time, the
    best plain one that takes no longer. Only settings that draw the same way count, so that reuse is compared with
    nothing else.
    """
    own = row.parsed
    plain = [
        other
        for other in rows
        if not other.reused
        and (other.parsed.guidance, other.parsed.within, other.parsed.temperature, other.parsed.choice_temperature)
        == (own.guidance, own.within, own.temperature, own.choice_temperature)
    ]
    result: dict[str, Any] = {}
    same = [
        other
        for other in plain
        if other.steps == row.steps
        and (other.parsed.head_steps or (None,))[0] == (own.head_steps or (None,))[0]  # after full evaluations
        and (other.parsed.anneal, other.parsed.solver) == (own.anneal, own.solver)
    ]
    if same:
        result["equal_steps"] = {
            "setting": same[0].setting,
            "speedup": same[0].seconds / row.seconds,
            "quality": same[0].quality,
        }
    as_good = [other for other in plain if other.quality <= row.quality + margin]
    if as_good:
        fastest = min(as_good, key=lambda other: other.seconds)
        result["equal_quality"] = {"setting": fastest.setting, "speedup": fastest.seconds / row.seconds}
    in_time = [other for other in plain if other.seconds <= row.seconds]
    if in_time:
        best = min(in_time, key=lambda other: other.quality)
        result["equal_time"] = {"setting": best.setting, "quality": best.quality, "gain": best.quality - row.quality}
    return result


def write_csv(path: str | Path, rows: Sequence[Row]) -> None:
    """The rows as a table for spreadsheets."""
    phases = sorted({name for row in rows for name in row.phases} - {"total"})
    figures = sorted({name for row in rows for name in row.figures})
    with Path(path).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["setting", "full", "local", "steps", "seconds_per_image", *phases, *figures, "spread", "front"]
        )
        for row in rows:
            table.writerow(
                [
                    row.setting,
                    row.parsed.full,
                    row.parsed.local,
                    row.steps,
                    f"{row.seconds:.6g}",
                    *(f"{row.phases.get(name, 0.0):.6g}" for name in phases),
                    *(f"{row.figures[name]:.6g}" if name in row.figures else "" for name in figures),
                    "" if row.spread is None else f"{row.spread:.6g}",
                    int(row.front),
                ]
            )


def read_points(path: Path) -> list[Point]:
    """The points of a sweep so far; a last line that was cut off by a crash is dropped."""
    if not path.is_file():
        return []
    points = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            data = parse_json(line, "it")
        except ValueError as error:
            if number == len(lines):
                break  # the process died while writing it; that point is measured again
            raise ValueError(f"{path}, line {number}, is damaged ({error}); remove that line") from error
        try:
            points.append(Point.from_dict(data))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return points


def append_point(path: Path, point: Point) -> None:
    """Add a finished point; a half line before it is cut away first."""
    write_points(path, [*read_points(path), point])


def write_points(path: Path, points: Iterable[Point]) -> None:
    """Write all points, whole or not at all."""
    with written_whole(path, "w") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in points)
