"""How often a run can be looked at without waiting for whoever looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 0.25  # of the time that may be spent on showing
MIN_SECONDS = 0.05  # seconds between two looks


class DisplayBudget:
    """Says when there is time to show something: all showing together takes a share of the time and no more.

    Things to show have names, since some take longer than others. `guesses` are the seconds that they take, until
    they have been shown once.
    """

    def __init__(
        self,
        guesses: dict[str, float] | None = None,
        *,
        share: float = SHARE,
        least: float = MIN_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.share, self.least, self.clock = share, least, clock
        self.spent = 0.0
        self._costs = dict(guesses or {})
        self._began = clock()
        self._last = self._began - least

    def due(self, what: str) -> bool:
        """Whether it is time for another look, and there is time for this."""
        return self.clock() - self._last >= self.least and self.affords(what)

    def affords(self, what: str) -> bool:
        """Whether showing this now keeps within the share."""
        cost = self._costs.get(what, 0.0)
        return self.spent + cost <= self.share * (self.clock() - self._began + cost)

    @contextmanager
    def showing(self, what: str) -> Iterator[None]:
        """Count the time of a `with` block as spent on this."""
        began = self.clock()
        try:
            yield
        finally:
            self._last = self.clock()
            took = self._last - began
            self.spent += took
            self._costs[what] = (self._costs.get(what, took) + took) / 2
