"""How fast models are on this machine, by the runs that it has seen."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field

from recap.core.costs import CostModel, step_costs
from recap.core.schedule import Schedule

FADING = 0.7  # weight of what was seen before, at every further run


@dataclass(slots=True)
class Line:
    """Seconds as a straight line over operations, fitted to what was seen; neither part of it is negative."""

    weight: float = 0.0
    x: float = 0.0  # sums, in billions of operations and seconds
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def see(self, points: Iterable[tuple[float, float]]) -> None:
        """Learn from operations and seconds of several sub-steps; older ones count less from now on."""
        for name in self.__slots__:
            setattr(self, name, FADING * getattr(self, name))
        for operations, seconds in points:
            x = operations / 1e9
            self.weight += 1
            self.x += x
            self.y += seconds
            self.xx += x * x
            self.xy += x * seconds

    def at(self, operations: float) -> float:
        """Seconds that so many operations are likely to take."""
        spread = self.weight * self.xx - self.x**2
        slope = (self.weight * self.xy - self.x * self.y) / spread if spread > 1e-6 * self.xx * self.weight else -1.0
        start = (self.y - slope * self.x) / self.weight
        if slope < 0 or start < 0:  # nothing to see but noise, or all points alike: in proportion
            slope, start = self.y / self.x, 0.0
        return start + slope * operations / 1e9


@dataclass(slots=True)
class Pace:
    """How long evaluations of a model take, each kind with its draws, and decoding an image."""

    full: Line = field(default_factory=Line)
    local: Line = field(default_factory=Line)
    decode: float = 0.0


class Paces:
    """The pace of every model; written by the thread that draws, read by any."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def see(self, model: str, sizes: CostModel, schedule: Schedule, seconds: list[float], decode: float) -> None:
        """Learn from a finished run: seconds of each of its sub-steps, and of decoding, for one image."""
        pace = copy.deepcopy(self._paces.get(model, Pace()))  # whoever reads meanwhile sees the old one
        costs = list(step_costs(sizes, schedule))
        for kind, line in (("full", pace.full), ("local", pace.local)):
            pairs = zip(costs, seconds, strict=True)
            points = [(step.total, took) for step, took in pairs if step.kind == kind]
            if points:
                line.see(points)
        pace.decode = decode
        self._paces[model] = pace

    def predicted(self, model: str, sizes: CostModel, schedule: Schedule) -> float | None:
        """Seconds that an image is likely to take; None before anything was seen of the model."""
        pace = self._paces.get(model)
        if pace is None:
            return None
        lines = {"full": pace.full, "local": pace.local if pace.local.weight else pace.full}
        return pace.decode + sum(lines[step.kind].at(step.total) for step in step_costs(sizes, schedule))
