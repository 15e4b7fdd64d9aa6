"""How often a run can be looked at without waiting for whoever looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.25  # of the time that may be spent on showing
GUESS = 0.1  # seconds that a look takes, until one was measured


class DisplayBudget:
    """Says when there is time to show something: all showing together takes a share of the time and no more."""

    def __init__(self, *, share: float = SHARE, clock: Callable[[], float] = time.perf_counter) -> None:
        self.share, self.clock = share, clock
        self.spent, self._cost, self._began = 0.0, GUESS, clock()

    def due(self) -> bool:
        """Whether one more look keeps within the share."""
        return self.spent + self._cost <= self.share * (self.clock() - self._began + self._cost)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Count the time of a `with` block as spent."""
        began = self.clock()
        try:
            yield
        finally:
            took = self.clock() - began
            self.spent, self._cost = self.spent + took, (self._cost + took) / 2
