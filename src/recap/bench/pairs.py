"""Plain decoding and reuse in turn, one by one, so that a busy machine is as slow for one as for the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from recap.bench.timing import synchronized_time
from recap.checkpoints.safe_files import read_json
from recap.engine import WARM_RUNS
from recap.pipelines.base import ModelPipeline as Pipeline
from recap.runs.draw import StepObserver, draw, fewest_together
from recap.runs.works import Done, Failed, Work
from recap.view.progress import tqdm
from recap.view.sheet import MAX_COLUMNS

WAYS = ("plain", "reused")
MAX_SPREAD = 2.0  # between the largest and the smallest ratio of pairs, from which their median says nothing


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast one way was as the other: the ratio of every pair, in wall and in processor time."""

    wall: tuple[float, ...]
    processor: tuple[float, ...] = ()

    @property
    def clear(self) -> bool:
        """Whether the pairs agree well enough for one number to stand for them."""
        low, high = min(self.wall), max(self.wall)
        return high / low <= MAX_SPREAD and not low < 1 < high

    @property
    def median(self) -> float | None:
        """That number, where there is one."""
        return median(self.wall) if self.clear else None

    def __str__(self) -> str:
        low, high, pairs = min(self.wall), max(self.wall), len(self.wall)
        between = f"{low:.2f}x to {high:.2f}x over {pairs} pairs" if pairs > 1 else "one pair"
        own = f"{median(self.processor):.2f}x in processor time"
        if not self.clear:
            return f"not clear ({between}, {own}): the machine is busy, or the two are level"
        return f"{self.factor} ({between}, {own})"

    @property
    def factor(self) -> str:
        middle = median(self.wall)
        return f"{middle:.2f}x faster" if middle >= 1 else f"{1 / middle:.2f}x slower"

    def json(self) -> dict[str, Any]:
        return {"median": self.median, "pairs": list(self.wall), "processor": median(self.processor)}


@dataclass(slots=True)
class Spent:
    """What one way took in one pair, in seconds."""

    wall: float = 0.0
    processor: float = 0.0  # of all threads of this process


class Pairs:
    """What several ways of drawing the same images take, pair by pair."""

    def __init__(self, clock: Callable[[], float], ways: Sequence[str] = WAYS) -> None:
        """`clock` tells the time once all work is done."""
        self.clock = clock
        self.spent: dict[str, list[Spent]] = {way: [] for way in ways}

    def begin(self) -> list[str]:
        """Open the next pair; the ways in their order, whichever comes first taking turns."""
        for spent in self.spent.values():
            spent.append(Spent())
        ways = list(self.spent)
        return ways if len(self.spent[ways[0]]) % 2 else ways[::-1]

    @contextmanager
    def timed(self, way: str) -> Iterator[None]:
        """Count a `with` block for a way, in the pair that is open."""
        spent, wall, processor = self.spent[way][-1], self.clock(), time.process_time()
        yield
        spent.processor += time.process_time() - processor
        spent.wall += self.clock() - wall

    def seconds(self, way: str) -> float:
        """Wall seconds of a way, all pairs together."""
        return sum(spent.wall for spent in self.spent[way])

    @property
    def speedup(self) -> Speedup:
        pairs = list(zip(self.spent["plain"], self.spent["reused"], strict=True))
        wall = tuple(plain.wall / reused.wall for plain, reused in pairs)
        return Speedup(wall, tuple(plain.processor / reused.processor for plain, reused in pairs))


def draw_in_turn(pipe: Pipeline, jobs: Mapping[str, Sequence[Work]], rounds: int) -> dict[str, list[Spent]]:
    """What a work of each job takes, in so many rounds of all of them; what is set up once comes before the first."""
    for works in jobs.values():
        for _ in range(max(1, WARM_RUNS[pipe.engine])):
            list(draw(pipe, works[:1]))
    pairs = Pairs(partial(synchronized_time, pipe.device), list(jobs))
    for number in tqdm(range(rounds), desc="times", unit="round", disable=len(jobs) < 2):
        for name in pairs.begin():
            works = jobs[name]
            size = min(fewest_together(pipe, works[0].schedule), len(works))
            lot = [works[(number * size + k) % len(works)] for k in range(size)]
            with pairs.timed(name):
                list(draw(pipe, lot))
            spent = pairs.spent[name][-1]
            spent.wall, spent.processor = spent.wall / size, spent.processor / size
    return pairs.spent


class DrawInTurn:
    """Draws works with reuse, and for each of them the same without."""

    def __init__(self, pipe: Pipeline, plain: Sequence[Work], setup: Sequence[Work]) -> None:
        """`setup` is drawn before the first pair, so that none pays for what is set up once."""
        self.plain, self.setup = {work.index: work for work in plain}, setup
        self.pairs = Pairs(partial(synchronized_time, pipe.device))
        self.answers: dict[str, dict[int, Any]] = {way: {} for way in WAYS}  # the first ones, by their index

    def __call__(
        self, pipe: Pipeline, works: Sequence[Work], observer: StepObserver | None
    ) -> Iterator[Done | Failed]:
        """What `runs.draw` gives for the works."""
        list(draw(pipe, self.setup))
        self.setup, size = (), fewest_together(pipe, works[0].schedule)
        for first in range(0, len(works), size):
            lot, made = works[first : first + size], dict[str, list[Done | Failed]]()
            asked = {"plain": [self.plain[work.index] for work in lot], "reused": lot}
            for way in self.pairs.begin():
                with self.pairs.timed(way):
                    made[way] = list(draw(pipe, asked[way], observer if way == "reused" else None))
                kept = self.answers[way]
                done = [result for result in made[way] if isinstance(result, Done)]
                kept |= {result.work.index: pipe.answer(result) for result in done[: MAX_COLUMNS - len(kept)]}
            for result in made["plain"]:
                if isinstance(result, Failed):
                    raise FloatingPointError(f"drawn plainly, {result}")
            yield from made["reused"]

    def again(self, pipe: Pipeline, works: Sequence[Work]) -> None:
        """Measure works that were drawn before, when nobody knows any more how long they took."""
        for result in self(pipe, works, None):
            if isinstance(result, Failed):
                raise FloatingPointError(str(result))


def measured_before(record: Path) -> str:
    """What the record of a run that is complete says of its times."""
    try:
        speedup = read_json(record)["compare"]["speedup"]
        said = Speedup(tuple(map(float, speedup["pairs"])), (float(speedup["processor"]),))
        return f"when they were made, reuse was {said}"
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):  # or by an earlier version, or damaged
        return "--overwrite makes and measures all of them again"
