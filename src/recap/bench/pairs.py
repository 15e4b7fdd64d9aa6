"""Plain decoding and reuse in turn, image by image, so that a busy machine is as slow for one as for the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from PIL import Image

from recap.bench.timing import synchronized_time
from recap.pipelines import Pipeline
from recap.runs.draw import StepObserver, draw, images_together
from recap.runs.works import Done, Failed, Work
from recap.view.sheet import MAX_COLUMNS

MAX_SPREAD = 2.0  # between the largest and the smallest ratio of pairs, from which their median says nothing


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast one way was as the other: the ratio of every pair, in wall and in processor time."""

    wall: tuple[float, ...]
    processor: tuple[float, ...]

    @property
    def clear(self) -> bool:
        """Whether the pairs agree well enough for one number to stand for them."""
        low, high = min(self.wall), max(self.wall)
        return high / low <= MAX_SPREAD and not low < 1 < high

    def __str__(self) -> str:
        low, high, pairs = min(self.wall), max(self.wall), len(self.wall)
        between = f"{low:.2f}x to {high:.2f}x over {pairs} pairs"
        if not self.clear:
            return f"not clear: {between}; the machine is busy, or the two are level"
        own = f"{median(self.processor):.2f}x in processor time"
        return f"{self.factor} ({between}, {own})" if pairs > 1 else f"{self.factor} (one pair, {own})"

    @property
    def factor(self) -> str:
        middle = median(self.wall)
        return f"{middle:.2f}x faster" if middle >= 1 else f"{1 / middle:.2f}x slower"

    def json(self) -> dict[str, Any]:
        ratio = {"median": median(self.wall)} if self.clear else {}
        return {**ratio, "pairs": list(self.wall), "processor": median(self.processor)}


@dataclass(slots=True)
class Pairs:
    """Draws works with reuse, and for each of them the same image without, whichever comes first taking turns."""

    plain: dict[int, Work]  # by the index of the image
    images: dict[str, dict[int, Image.Image]] = field(default_factory=lambda: {"plain": {}, "reused": {}})
    times: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"plain": [], "reused": []})

    def draw(self, pipe: Pipeline, works: Sequence[Work], observer: StepObserver | None) -> Iterator[Done | Failed]:
        """What `runs.draw` gives for the works; the first images of both ways are kept."""
        size = images_together(pipe)
        for first in range(0, len(works), size):
            lot, made = works[first : first + size], dict[str, list[Done | Failed]]()
            ways = {"plain": [self.plain[work.index] for work in lot], "reused": lot}
            for way in sorted(ways, reverse=len(self.times["plain"]) % 2 == 1):
                wall, processor = synchronized_time(pipe.device), time.process_time()
                made[way] = list(draw(pipe, ways[way], observer if way == "reused" else None))
                spent = time.process_time() - processor
                self.times[way].append((synchronized_time(pipe.device) - wall, spent))
                kept = self.images[way]
                done = [result for result in made[way] if isinstance(result, Done)]
                kept |= {result.work.index: result.image for result in done[: MAX_COLUMNS - len(kept)]}
            yield from made["reused"]

    def total(self, way: str) -> float:
        return sum(wall for wall, _ in self.times[way])

    @property
    def speedup(self) -> Speedup:
        pairs = zip(self.times["plain"], self.times["reused"], strict=True)
        ratios = [(plain[0] / reused[0], plain[1] / reused[1]) for plain, reused in pairs]
        return Speedup(*zip(*ratios, strict=True))
