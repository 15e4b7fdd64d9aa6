"""Counts for those who watch a server, in the text format that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Count:
    """Something that only grows, one number for each set of labels."""

    name: str
    about: str
    values: Counter[Labels] = field(default_factory=Counter)

    def add(self, number: int = 1, **labels: str) -> None:
        self.values[tuple(sorted(labels.items()))] += number

    def lines(self) -> list[str]:
        rows = self.values or {(): 0}
        return [f"{self.name}{_labels(labels)} {value}" for labels, value in sorted(rows.items())]


@dataclass(slots=True)
class Gauge:
    """Something that is looked up when asked for."""

    name: str
    about: str
    value: Callable[[], float]

    def lines(self) -> list[str]:
        return [f"{self.name} {self.value():g}"]


@dataclass(slots=True)
class Histogram:
    """How often values fell under each of some bounds."""

    name: str
    about: str
    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def see(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self) -> list[str]:
        rows, below = [], 0
        for bound, count in zip((*self.bounds, None), self.counts, strict=True):
            below += count
            le = "+Inf" if bound is None else f"{bound:g}"
            rows.append(f'{self.name}_bucket{{le="{le}"}} {below}')
        return [*rows, f"{self.name}_sum {self.total:g}", f"{self.name}_count {below}"]


class Metrics:
    """All that a server counts; touched by its event loop alone."""

    def __init__(self) -> None:
        self.requests = Count("recap_requests_total", "Requests by endpoint and outcome.")
        self.images = Count("recap_images_total", "Images drawn for somebody.")
        self.dropped = Count("recap_images_dropped_total", "Images begun and not finished: clients gone, or faults.")
        self.batch_images = Histogram("recap_batch_images", "Images that were asked for in a batch.", IMAGES)
        self.batch_seconds = Histogram("recap_batch_seconds", "Seconds that a batch took.", SECONDS)
        self.request_seconds = Histogram("recap_request_seconds", "Seconds from request to answer.", SECONDS)
        self.gauges: list[Gauge] = []

    def text(self) -> str:
        """Everything, for `/metrics`."""
        parts: list[tuple[str, Count | Gauge | Histogram]] = [
            ("counter", self.requests),
            ("counter", self.images),
            ("counter", self.dropped),
            *(("gauge", gauge) for gauge in self.gauges),
            ("histogram", self.batch_images),
            ("histogram", self.batch_seconds),
            ("histogram", self.request_seconds),
        ]
        lines = []
        for kind, part in parts:
            lines += [f"# HELP {part.name} {part.about}", f"# TYPE {part.name} {kind}", *part.lines()]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}"
