"""Comparisons: events that tell the whole run, in fair time, and the latest ones kept."""

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.models.adapter import ModelWrapper
from recap.server.compare import SHARE, VariantRun, fair
from recap.view.pace import DisplayBudget
from tests.server.served import compared, few, pngs, served
from tests.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_events_tell_the_whole_run(family: str) -> None:
    started, *middle, done = compared(served(family), num=2, full=4, local=3)
    assert (started["event"], started["model"], started["images"]) == ("started", family, 2)
    assert (started["schedule"]["full"], started["schedule"]["local"]) == (4, 3)
    assert [variant["evaluations"] for variant in started["variants"]] == ["7", "4+3"]
    for variant in started["variants"]:
        name, tokens = variant["variant"], variant["tokens"]
        own = [event for event in middle if event["variant"] == name]
        frames = [event for event in own if event["event"] == "frame"]
        assert [(frame["image"], frame["step"]) for frame in frames] == [(i, s) for i in (0, 1) for s in range(1, 8)]
        assert [frame["evaluation"] for frame in frames] == variant["kinds"] * 2
        assert [frame["decoded"] for frame in frames] == [int(total) for total in np.cumsum(tokens)] * 2
        for frame in frames:
            states = frame["states"]
            assert len(states) == 16
            assert states.count("2") == tokens[frame["step"] - 1]
            assert states.count("2") + states.count("3") == frame["decoded"]
        assert frames[-1]["picture"] is None  # a finished image follows
        clocks = [event["seconds"] for event in own]
        assert clocks == sorted(clocks)
        assert clocks[-1] == done["seconds"][name]
    assert done["event"] == "done"
    assert done["speedup"] == pytest.approx(done["seconds"]["plain"] / done["seconds"]["reused"])
    images = [[pixels(file) for file in pngs(middle, variant)] for variant in ("plain", "reused")]
    assert done["difference"] == pytest.approx([np.abs(one - two).mean() for one, two in zip(*images, strict=True)])


def pixels(file: bytes) -> Any:
    with Image.open(io.BytesIO(file)) as picture:
        return np.asarray(picture, dtype=float)


def test_one_variant_where_there_is_nothing_to_compare() -> None:
    plain = compared(full=4, local=0)
    assert [variant["variant"] for variant in plain[0]["variants"]] == ["plain"]
    reused = compared(full=4, local=2, compare=False)
    assert [variant["variant"] for variant in reused[0]["variants"]] == ["reused"]
    for events in (plain, reused):
        assert (events[-1]["speedup"], events[-1]["difference"]) == (None, None)


class Runner:
    """Stands for a variant whose sub-steps take these seconds."""

    def __init__(self, name: str, seconds: list[float]) -> None:
        self.name, self.seconds = name, 0.0
        self.steps = self._steps(seconds)

    def _steps(self, seconds: list[float]) -> Any:
        for each in seconds:
            self.seconds += each
            yield [{"variant": self.name, "seconds": self.seconds}]


def test_the_clock_that_is_behind_goes_on() -> None:
    rng = random.Random(0)
    for _ in range(20):
        runs: Any = [Runner(name, [rng.random() for _ in range(rng.randint(1, 12))]) for name in "ab"]
        clocks, left = {"a": 0.0, "b": 0.0}, {run.name: 0 for run in runs}
        events = list(fair(runs))
        for event in events:
            left[event["variant"]] += 1
        for event in events:
            other = "b" if event["variant"] == "a" else "a"
            assert clocks[event["variant"]] <= clocks[other] or not left[other]
            clocks[event["variant"]] = event["seconds"]
            left[event["variant"]] -= 1
        assert clocks == {run.name: run.seconds for run in runs}


class Slow(ModelWrapper):
    """Evaluations take a second of a clock that is only moved by hand."""

    def __init__(self, model: Any, time: list[float]) -> None:
        super().__init__(model)
        self.time = time

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Any:
        self.time[0] += 1
        return super().full(canvas, cache, wanted)

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Any:
        self.time[0] += 1
        return super().local(canvas, cache, rows, wanted)


def taking(time: list[float], seconds: float, function: Any) -> Any:
    def later(*args: Any, **options: Any) -> Any:
        time[0] += seconds
        return function(*args, **options)

    return later


@pytest.mark.parametrize("family", ["maskgit", "mar"])
def test_a_clock_counts_the_run_and_nothing_else(family: str) -> None:
    """Evaluations take a second here, decoding an image ten, and pictures of what is under way thousands."""
    time = [0.0]
    pipe: Any = few(family)
    pipe.model = Slow(pipe.model, time)
    pipe.decode = taking(time, 10, pipe.decode)
    pipe.preview = taking(time, 5000, pipe.preview)
    works = pipe.works([1, 2], schedule="4+3", seed=0)
    clock = lambda: time[0]  # noqa: E731
    run = VariantRun("reused", works, pipe, DisplayBudget(share=SHARE, clock=clock))
    events = [event for several in run.steps for event in several]
    assert run.seconds == 2 * (7 + 10)
    assert [event["seconds"] for event in events if event["event"] == "image"] == [17, 34]
    assert [event["seconds"] for event in events if event["event"] == "frame"] == [*range(1, 8), *range(18, 25)]
    assert time[0] > 5000


@pytest.mark.parametrize("cost", [0.01, 1.0, 7.0])
def test_pictures_take_no_more_than_their_share(cost: float) -> None:
    """About half of the run's own time, and the one that tells what a picture costs."""
    time, shown = [0.0], 0
    pipe: Any = few("maskgit")
    pipe.model = Slow(pipe.model, time)
    pipe.preview = taking(time, cost, pipe.preview)
    works = pipe.works([1] * 8, schedule="8", seed=0)
    budget = DisplayBudget(share=SHARE, clock=lambda: time[0])
    for events in VariantRun("plain", works, pipe, budget).steps:
        shown += sum(event["event"] == "frame" and event["picture"] is not None for event in events)
        assert cost * shown <= SHARE * time[0] + cost
    assert shown >= min(8 * 7, max(1, int(8 * 8 * SHARE / cost) - 1))
    unseen = [
        event for events in VariantRun("plain", works, pipe, budget, watched=lambda: False).steps for event in events
    ]
    assert all(event["picture"] is None for event in unseen if event["event"] == "frame")
