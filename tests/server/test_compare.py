"""Comparisons: events that tell the whole run, in fair time, and the latest ones kept."""

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

from recap.bench.pairs import Pairs
from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.models.adapter import ModelWrapper
from recap.server.compare import SHARE, in_turn
from recap.server.variants import PictureRun
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
    ends = {name: [event["seconds"] for event in middle if key(event) == (name, "image")] for name in done["seconds"]}
    took = {name: np.diff(clock, prepend=0.0) for name, clock in ends.items()}
    assert done["speedup"]["pairs"] == pytest.approx(took["plain"] / took["reused"])  # one for every image
    assert done["speedup"]["processor"] > 0
    images = [[pixels(file) for file in pngs(middle, variant)] for variant in ("plain", "reused")]
    assert done["difference"] == pytest.approx([np.abs(one - two).mean() for one, two in zip(*images, strict=True)])


def key(event: Any) -> tuple[str, str]:
    return event["variant"], event["event"]


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
    """Stands for a variant whose images take these seconds, sub-step by sub-step."""

    def __init__(self, name: str, images: list[list[float]], pairs: Pairs, time: list[float]) -> None:
        self.name, self.images, self.pairs, self.time = name, images, pairs, time

    def lots(self) -> Any:
        return (self._steps(image, seconds) for image, seconds in enumerate(self.images))

    def _steps(self, image: int, seconds: list[float]) -> Any:
        for each in seconds:
            with self.pairs.timed(self.name):
                self.time[0] += each
            yield [(image, self.name, each)]


def test_images_are_drawn_in_pairs_and_the_clock_that_is_behind_goes_on() -> None:
    rng = random.Random(0)
    for _ in range(20):
        time = [0.0]
        pairs = Pairs(lambda time=time: time[0])  # type: ignore[misc]
        images = {way: [[rng.random() for _ in range(rng.randint(1, 9))] for _ in range(3)] for way in pairs.spent}
        runs: Any = [Runner(way, images[way], pairs, time) for way in images]
        events: Any = list(in_turn(runs, pairs))
        assert [image for image, _, _ in events] == sorted(image for image, _, _ in events)
        for image in range(3):
            clocks, left = dict.fromkeys(images, 0.0), {way: len(images[way][image]) for way in images}
            mine = [event[1:] for event in events if event[0] == image]
            assert mine[0][0] == ("plain", "reused")[image % 2]  # whichever comes first takes turns
            for way, seconds in mine:
                other = "reused" if way == "plain" else "plain"
                assert clocks[way] <= clocks[other] or not left[other]
                clocks[way] += seconds
                left[way] -= 1
            assert not any(left.values())
            spent = {way: pairs.spent[way][image].wall for way in images}
            assert spent == pytest.approx(clocks)


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
    pairs = Pairs(clock, ["reused"])
    run = PictureRun("reused", works, pipe, pairs, DisplayBudget(share=SHARE, clock=clock))
    events = list(in_turn([run], pairs))
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
    pairs = Pairs(budget.clock, ["plain"])
    for event in in_turn([PictureRun("plain", works, pipe, pairs, budget)], pairs):
        shown += event["event"] == "frame" and event["picture"] is not None
        assert cost * shown <= SHARE * time[0] + cost
    assert shown >= min(8 * 7, max(1, int(8 * 8 * SHARE / cost) - 1))
    unseen = in_turn([PictureRun("plain", works, pipe, pairs, budget, watched=lambda: False)], pairs)
    assert all(event["picture"] is None for event in unseen if event["event"] == "frame")
