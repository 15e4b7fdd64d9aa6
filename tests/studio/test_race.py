"""Fair time: whose turn it is, what a clock counts, and how much time pictures may take."""

import random
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest

from recap import cosine
from recap.core.costs import step_costs
from recap.serving.work import Work
from recap.studio.jobs import Lane
from recap.studio.paces import Line, Paces
from recap.studio.previews import SHARE, Previews
from recap.studio.race import Pane, race
from tests.serving.served import few


class Runner:
    """Stands for a pane whose sub-steps take these seconds."""

    def __init__(self, name: str, seconds: list[float]) -> None:
        self.name, self.clock = name, 0.0
        self.steps = self._steps(seconds)

    def _steps(self, seconds: list[float]) -> Any:
        for each in seconds:
            self.clock += each
            yield [{"pane": self.name, "seconds": self.clock}]


def test_the_clock_that_is_behind_goes_on() -> None:
    rng = random.Random(0)
    for _ in range(20):
        panes: Any = [Runner(name, [rng.random() for _ in range(rng.randint(1, 12))]) for name in "ab"]
        clocks, left = {"a": 0.0, "b": 0.0}, {pane.name: 0 for pane in panes}
        events = list(race(panes))
        for event in events:
            left[event["pane"]] += 1
        for event in events:
            other = "b" if event["pane"] == "a" else "a"
            assert clocks[event["pane"]] <= clocks[other] or not left[other]
            clocks[event["pane"]] = event["seconds"]
            left[event["pane"]] -= 1
        assert clocks == {pane.name: pane.clock for pane in panes}


@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("family", ["maskgit", "mar"])
def test_a_clock_counts_the_run_and_nothing_else(monkeypatch: pytest.MonkeyPatch, family: str, drift: bool) -> None:
    """Evaluations take a second here, decoding an image ten, and all else thousands."""
    time = 0.0

    def taking(seconds: float, function: Any) -> Any:
        def slow(*args: Any, **options: Any) -> Any:
            nonlocal time
            time += seconds
            return function(*args, **options)

        return slow

    for module in ("recap.frames", "recap.evaluation.error", "recap.studio.race", "recap.studio.previews"):
        monkeypatch.setattr(f"{module}.now", lambda _: time)
    from recap.evaluation import error

    pipe = few(family)
    monkeypatch.setattr(error, "evaluation_error", taking(1000, error.evaluation_error))
    pipe.model = pipe.model.replace(full=taking(1, pipe.model.full), local=taking(1, pipe.model.local))
    monkeypatch.setattr(pipe, "decode", taking(10, pipe.decode))
    monkeypatch.setattr(pipe, "preview", taking(5000, pipe.preview))
    schedule = pipe.default_schedule(full=4, local=3)
    pane = Pane(Lane("reused", tuple(Work(schedule, 1, 0, index) for index in (0, 1))), pipe, drift=drift)
    events = [event for several in pane.steps for event in several]
    assert pane.clock == 2 * (7 + 10)
    assert [event["seconds"] for event in events if event["event"] == "image"] == [17, 34]
    assert [event["seconds"] for event in events if event["event"] == "frame"] == [*range(1, 8), *range(18, 25)]
    assert pane.took == [2] * 7
    assert pane.decoding == 20
    assert time > (11000 if drift else 5000)


def test_pictures_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one always; after that, whatever a picture costs, about half of the run's own time at most."""
    for cost in (0.01, 0.4, 1.0, 7.0):
        time, shown = [0.0], 0
        monkeypatch.setattr("recap.studio.previews.now", lambda _, time=time: time[0])

        def preview(*_: Any, time: list[float] = time, cost: float = cost) -> list[Any]:
            time[0] += cost
            return []

        frame: Any = SimpleNamespace(tokens=[], masked=[], pipe=SimpleNamespace(preview=preview, device=None))
        budget = Previews()
        for clock in accumulate([0.5] * 40):
            before = time[0]
            budget.of(frame, 0, clock)
            shown += time[0] > before
            assert budget.seconds <= max(cost, SHARE * clock) + 1e-9
        assert shown >= min(40, max(1, int(SHARE * 20 / cost) - 1))


def test_a_line_is_found_and_never_negative() -> None:
    line = Line()
    line.see([(1e9, 3.0), (2e9, 5.0)])
    line.see([(4e9, 9.0)])
    assert line.at(10e9) == pytest.approx(21.0)
    alike = Line()
    alike.see([(2e9, 4.0), (2e9, 4.0)])
    assert alike.at(1e9) == pytest.approx(2.0)
    rng = random.Random(0)
    for _ in range(100):
        noisy = Line()
        noisy.see([(1e9 * rng.uniform(1, 2), rng.random()) for _ in range(rng.randint(1, 5))])
        assert noisy.at(1e9 * rng.uniform(0, 5)) >= 0


@pytest.mark.parametrize("family", ["maskgit", "mar", "mage"])
def test_paces_add_up(family: str) -> None:
    """A machine whose sub-steps take a second and another for every so many operations is predicted exactly."""
    sizes: Any = few(family).model.config

    def takes(schedule: Any) -> list[float]:
        rates = {"full": 1e-6, "local": 3e-6}
        return [0.5 + rates[step.kind] * step.total for step in step_costs(sizes, schedule)]

    seen, other = cosine(16, full=5, local=4, chain=2, plain=1), cosine(16, full=6, local=3)
    paces = Paces()
    assert paces.predicted(family, sizes, seen) is None
    paces.see(family, sizes, seen, takes(seen), 2.0)
    assert paces.predicted(family, sizes, seen) == pytest.approx(sum(takes(seen)) + 2.0)
    assert paces.predicted("another", sizes, seen) is None
    if family != "mage":  # its full evaluations take operations alike, which says nothing of the second
        assert paces.predicted(family, sizes, other) == pytest.approx(sum(takes(other)) + 2.0, rel=0.2)
