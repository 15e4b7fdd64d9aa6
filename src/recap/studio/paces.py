"""How fast models are on this machine, by the runs that it has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

from recap.core.schedule import Schedule
from recap.planning import Plan
from recap.studio.race import Pane

NEWEST = 0.5  # weight of the latest run


@dataclass(slots=True)
class Pace:
    """Mean seconds of a full evaluation, of a local one, each with its draws, and of decoding an image."""

    seconds: dict[str, float] = field(default_factory=dict)

    def see(self, kind: str, seconds: float) -> None:
        before = self.seconds.get(kind, seconds)
        self.seconds[kind] = before + NEWEST * (seconds - before)


class Paces:
    """The pace of every model with guidance and without; written by the thread that draws, read by any."""

    def __init__(self) -> None:
        self._paces: dict[tuple[str, bool], Pace] = {}

    def see(self, model: str, pane: Pane) -> None:
        """Learn from a finished pane."""
        schedule, images = pane.lane.schedule, len(pane.lane.works)
        pace = self._paces.setdefault((model, schedule.guided), Pace())
        for kind, count in (("full", schedule.full), ("local", schedule.local), ("decode", 1)):
            if count:
                pace.see(kind, pane.spent[kind] / (count * images))

    def predicted(self, model: str, plan: Plan) -> dict[str, float] | None:
        """Seconds an image by plain decoding in as many sub-steps and by the plan; None before anything was seen."""
        schedule: Schedule = plan.schedule
        pace = self._paces.get((model, schedule.guided))
        if pace is None:
            return None
        full, decode = pace.seconds["full"], pace.seconds["decode"]
        local = pace.seconds.get("local", full * plan.local_share)  # by operations, until one was seen
        return {
            "plain": len(schedule.steps) * full + decode,
            "reused": schedule.full * full + schedule.local * local + decode,
        }
