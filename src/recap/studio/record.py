"""What is kept of finished runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from recap.studio.jobs import Job
from recap.studio.race import Event


@dataclass(slots=True)
class Record:
    """A run: what was asked for, all of its events, and what it took."""

    id: str
    job: Job
    device: str
    dtype: str
    engine: str
    events: list[Event] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    difference: list[float] | None = None
    files: dict[str, bytes] = field(default_factory=dict)  # made of it so far; touched by the event loop alone

    @property
    def speedup(self) -> float | None:
        plain, reused = self.seconds.get("plain"), self.seconds.get("reused")
        return None if plain is None or reused is None else plain / reused

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        pictures = sum(len(event["picture"] or b"") + len(event.get("cells", "")) for event in self.events)
        upload = self.job.upload
        return pictures + sum(map(len, self.files.values())) + (len(upload.image + upload.mask) if upload else 0)

    def of(self, kind: str, pane: str) -> list[Event]:
        """The events of a kind in a pane, in order."""
        return [event for event in self.events if event["event"] == kind and event["pane"] == pane]

    def summary(self) -> dict[str, Any]:
        return {"run": self.id, "seconds": self.seconds, "speedup": self.speedup, "difference": self.difference}


class Kept:
    """The latest finished runs, as many as fit into so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        self._records[record.id] = record
        self.trim()

    def trim(self) -> None:
        """Forget the oldest until the rest fits."""
        size = sum(record.size for record in self._records.values())
        while size > self._most:
            _, oldest = self._records.popitem(last=False)
            size -= oldest.size

    def find(self, run: str) -> Record | None:
        return self._records.get(run)


def difference(panes: Sequence[Sequence[Image.Image]]) -> list[float] | None:
    """Mean absolute difference of the pixels of two panes, image by image."""
    if len(panes) != 2:
        return None
    pairs = ([np.asarray(image, dtype=np.float64) for image in pair] for pair in zip(*panes, strict=True))
    return [float(np.abs(first - second).mean()) for first, second in pairs]
