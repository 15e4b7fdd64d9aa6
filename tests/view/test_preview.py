"""`--preview`: a run shown in a terminal, which changes nothing about the run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.segment import Segment

from recap import Pipeline
from recap.core.canvas import Canvas
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
from recap.view.pace import GUESS, DisplayBudget
from recap.view.preview import preview
from recap.view.terminal import MAX_SHOWN, MAX_SIDE, MIN_SIDE, Preview, Screen, half_blocks
from tests.pipelines.test_pipeline import FAMILIES, SCHEDULE, pipeline, request, shared


def console(**options: Any) -> Console:
    given: dict[str, Any] = {"width": 160, "height": 40, **options}
    return Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", **given)


class Pages(Screen):
    """A screen that keeps the lines of text that it showed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(console(**options))
        self.pages: list[list[str]] = []

    def refresh(self) -> None:
        lines = self.console.render_lines(self.get_renderable(), pad=False)
        self.pages.append(["".join(segment.text for segment in line) for line in lines])


class EveryStep(Preview):
    """A preview that has time for every sub-step."""

    def __init__(self, pipe: Pipeline, num: int, names: Sequence[str] | None = None, **options: Any) -> None:
        self.seen = Pages(**options)
        super().__init__(pipe, self.seen, "title", num, names)
        self.seen.pages.clear()
        self.budget = DisplayBudget(share=1e9)


def results(pipe: Pipeline, works: Sequence[Work], observer: Any = None, batch: int = 1) -> list[Done | Failed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recap.runs.draw.images_together", lambda *_: batch)  # as on a GPU
        return list(draw(pipe, works, observer))


def one(pipe: Pipeline) -> list[Work]:
    return pipe.works([1], schedule=SCHEDULE, seed=0)


def halves(segment: Segment) -> list[list[tuple[int, ...]]]:
    """The colours of the upper and the lower half of each character."""
    assert segment.style is not None
    assert set(segment.text) == {"▀"}
    colours = [segment.style.color or Color.default(), segment.style.bgcolor or Color.default()]
    return [[tuple(colour.get_truecolor()) for colour in colours]] * len(segment.text)


@given(st.integers(1, 12), st.integers(0, 99))
def test_half_blocks_are_the_pixels(half: int, seed: int) -> None:
    side = 2 * half
    pixels = np.random.default_rng(seed).integers(0, 4, (side, side, 3)).astype(np.uint8) * 85  # some are equal
    lines = console().render_lines(half_blocks(Image.fromarray(pixels), side), pad=False)
    cells = [[pair for segment in line for pair in halves(segment)] for line in lines]
    found = np.array(cells)  # (half, side, 2, 3)
    assert (found.transpose(0, 2, 1, 3).reshape(side, side, 3) == pixels).all()


@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, MAX_SHOWN))
def test_pictures_fit_every_terminal(columns: int, lines: int, count: int) -> None:
    screen = Pages(width=columns, height=lines)
    side = screen.side(count)
    assert side == 0 or MIN_SIDE <= side <= MAX_SIDE
    if side:
        screen.seen = [Image.new("RGB", (side, side))] * count
        screen.add_task("text" * 100)
        (*shown, _) = screen.pages[-1]
        assert len(shown) == side // 2 < lines - 1
        assert {line.count("▀") for line in shown} == {side * count}
    else:
        assert min(columns // count - 2, 2 * (lines - 4)) // 2 * 2 < MIN_SIDE


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_sub_step_can_be_shown_and_changes_nothing(family: str, batch: int) -> None:
    pipe = shared(family)
    asked = request(family, 6)
    works = pipe.works(**asked, schedule=SCHEDULE, seed=0)
    shown = EveryStep(pipe, 6, list("abcdef"))
    seen = results(pipe, works, shown, batch)
    for ours, theirs in zip(seen, results(pipe, works, None, batch), strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
        assert np.array_equal(np.asarray(ours.image), np.asarray(theirs.image))  # type: ignore[union-attr]
    frames = list(pipe.stream(**request(family, 1), schedule=SCHEDULE, seed=0))
    steps, runs = len(SCHEDULE.steps), 6 // batch
    assert len(shown.seen.pages) == steps * runs  # all but the last, and the finished pictures
    for index, page in enumerate(shown.seen.pages):
        run, step = divmod(index, steps)
        which = f"image {run + 1} of 6  " if batch == 1 else "images 1 to 6 of 6  "
        what = frames[step].position if step + 1 < steps else "finished"
        name = f"{'abcdef'[run]}  title " if batch == 1 else "title "
        decoded = list(accumulate(SCHEDULE.sizes))[step]
        assert page[-1].startswith(f"{which}{what}  decoded {decoded}/16  {name}")
        assert page[0].startswith("▀" * 8)
    assert shown.seen.tasks[0].finished


@pytest.mark.parametrize("options", [{"width": 5}, {"height": 5}, {"no_color": True}])
def test_there_is_no_picture_where_none_fits_or_no_colours_are(options: dict[str, Any]) -> None:
    shown = EveryStep(shared("maskgit"), 1, **options)
    results(shared("maskgit"), one(shared("maskgit")), shown)
    assert {len(page) for page in shown.seen.pages} == {1}  # the line of text


def test_pictures_without_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, released, tried = pipeline("maskgit"), list[Any](), list[Any]()

    def refuse(*given: Any) -> None:
        tried.append(given)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(pipe, "preview", refuse)
    monkeypatch.setattr("recap.view.terminal.release", released.append)
    shown = EveryStep(pipe, 1)
    assert isinstance(results(pipe, one(pipe), shown)[0], Done)
    assert len(shown.seen.pages) == len(SCHEDULE.steps)
    assert len(tried) == len(released) == 1
    monkeypatch.setattr(pipe, "preview", lambda *given: [][0])
    with pytest.raises(IndexError):  # that has nothing to do with memory
        results(pipe, one(pipe), EveryStep(pipe, 1))


def test_nan_can_be_looked_at() -> None:
    class Poisoned(EveryStep):
        def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
            with torch.inference_mode():
                canvas.tokens[:, 0] = torch.nan
                canvas.finite[:] = False
            super().step(works, step, canvas)

    shown = Poisoned(shared("mar"), 1)
    assert isinstance(results(shared("mar"), one(shared("mar")), shown)[0], Failed)
    assert len(shown.seen.pages) == len(SCHEDULE.steps)


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.3)), min_size=50, max_size=50), st.floats(0.05, 0.9))
def test_showing_keeps_within_its_share(steps: list[tuple[float, float]], share: float) -> None:
    now = 0.0
    budget = DisplayBudget(share=share, clock=lambda: now)
    for work, cost in steps:
        now += work
        if budget.due():
            with budget.showing():
                now += cost
            assert budget.spent <= share * now + 0.3 + GUESS  # one that took longer than those before


def test_without_a_terminal_or_rich_it_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with preview(False, shared("maskgit"), 1, "title") as shown:
        assert shown is None
    assert capsys.readouterr().err == ""
    for reason in ("a terminal", 'rich: pip install "recap-mgm[preview]"'):
        with preview(True, shared("maskgit"), 1, "title") as shown:
            assert shown is None
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"--preview needs {reason}")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
