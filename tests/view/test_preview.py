"""`--preview`: a run shown in a terminal, which changes nothing about the run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console, RenderableType

from recap import Pipeline, SamplingOptions, load
from recap.core.canvas import Canvas
from recap.runs.backoff import OutOfMemoryBackoff
from recap.runs.draw import draw
from recap.runs.stopping import Stopped, handle_signals
from recap.runs.works import Done, Failed, Work
from recap.view.pace import DisplayBudget
from recap.view.preview import previews
from recap.view.terminal import MAX_SHOWN, Preview
from tests.pipelines.test_pipeline import FAMILIES, SCHEDULE, pipeline, request, shared
from tests.view.terminals import HIDE, SHOW, Run


class Page:
    """A live display that keeps what it was given."""

    def __init__(self, **options: Any) -> None:
        self.console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", **options)
        self.pages: list[list[str]] = []

    def update(self, page: RenderableType, *, refresh: bool) -> None:
        assert refresh
        lines = self.console.render_lines(page, pad=False)
        self.pages.append(["".join(segment.text for segment in line) for line in lines])

    @property
    def lines(self) -> list[str]:
        """The line of text of every page."""
        return [page[-1] for page in self.pages]


class EveryStep(Preview):
    """A preview that has time for every sub-step."""

    live: Any

    def __init__(self, pipe: Pipeline, num: int, **options: Any) -> None:
        super().__init__(pipe, Page(width=160, height=40), "title", num, **options)  # type: ignore[arg-type]
        self.budget = DisplayBudget(share=1e9, least=0.0)


def results(pipe: Pipeline, works: Sequence[Work], observer: Any = None, batch: int = 1) -> list[Done | Failed]:
    return list(draw(pipe, works, observer, backoff=OutOfMemoryBackoff(batch, pipe.device)))


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_sub_step_can_be_shown_and_changes_nothing(family: str, batch: int) -> None:
    pipe = shared(family)
    works = pipe.works(**asked(family, 6), schedule=SCHEDULE, seed=0)
    preview = EveryStep(pipe, 6, names=list("abcdef"))
    seen = results(pipe, works, preview, batch)
    for ours, theirs in zip(seen, results(pipe, works, None, batch), strict=True):
        assert torch.equal(ours.tokens, theirs.tokens)
        assert np.array_equal(np.asarray(ours.image), np.asarray(theirs.image))  # type: ignore[union-attr]
    frames = list(pipe.stream(**request(family, 1), schedule=SCHEDULE, seed=0))
    steps, runs = len(SCHEDULE.steps), 6 // batch
    assert len(preview.live.pages) == steps * runs  # all but the last, and the finished pictures
    for index, line in enumerate(preview.live.lines):
        run, step = divmod(index, steps)
        which = f"image {run + 1} of 6  " if batch == 1 else f"images 1 to 6 of 6, {MAX_SHOWN} shown  "
        what = frames[step].position if step + 1 < steps else "finished"
        assert line.startswith(f"{which}{what}  decoded {list(accumulate(SCHEDULE.sizes))[step]}/16  ")
        assert line.endswith(f"  {'abcdef'[run]}  title" if batch == 1 else "  title")
        assert ("left" in line) == (run + 1 < runs or step + 1 < steps)
        assert preview.live.pages[index][0].startswith("▀" * 8)
    assert preview.spent > 0


def asked(family: str, num: int) -> dict[str, Any]:
    return {"num": num} if family == "mage" else request(family, num)


def test_there_is_no_picture_where_none_fits_or_no_colours_are() -> None:
    pipe = shared("maskgit")
    works = pipe.works([1], schedule=SCHEDULE, seed=0)
    for options in ({"width": 5, "height": 40}, {"width": 100, "height": 5}, {"no_color": True, "width": 100}):
        preview = EveryStep(pipe, 1)
        preview.live = Page(**options)
        preview.colours = not options.get("no_color", False)
        results(pipe, works, preview)
        assert {len(page) for page in preview.live.pages} == {2}  # the timeline, and the line of text


def test_pictures_without_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, released = pipeline("maskgit"), list[Any]()
    tried = list[Any]()

    def refuse(*given: Any) -> None:
        tried.append(given)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(pipe, "preview", refuse)
    monkeypatch.setattr("recap.view.terminal.release", released.append)
    preview = EveryStep(pipe, 1)
    assert isinstance(results(pipe, pipe.works([1], schedule=SCHEDULE, seed=0), preview)[0], Done)
    assert len(preview.live.pages) == len(SCHEDULE.steps)
    assert len(tried) == len(released) == 1


def test_other_errors_of_a_picture_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline("maskgit")
    monkeypatch.setattr(pipe, "preview", lambda *given: [][0])
    with pytest.raises(IndexError):
        results(pipe, pipe.works([1], schedule=SCHEDULE, seed=0), EveryStep(pipe, 1))


def test_nan_can_be_looked_at() -> None:
    class Poisoned(EveryStep):
        def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
            with torch.inference_mode():
                canvas.tokens[:, 0] = torch.nan
                canvas.finite[:] = False
            super().step(works, step, canvas)

    pipe = shared("mar")
    preview = Poisoned(pipe, 1)
    assert isinstance(results(pipe, pipe.works([1], schedule=SCHEDULE, seed=0), preview)[0], Failed)
    assert len(preview.live.pages) == len(SCHEDULE.steps)


def test_time_left_is_by_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    preview = EveryStep(shared("maskgit"), 4)
    preview._indices, preview._drawn = [1], 1
    monkeypatch.setattr("time.perf_counter", lambda: preview._began + 6.0)
    assert preview._left(0.5) == "about 10 s left"  # 1.5 of 4 images took 6 s
    preview.processes = 2
    assert preview._left(0.5) == "about 6.0 s left"
    preview._indices, preview._drawn = [3], 4
    assert preview._left(1.0) == ""


def test_without_a_terminal_or_rich_it_says_so_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with previews(False, shared("maskgit"), 1) as opened:
        assert opened("title") is None
    assert capsys.readouterr().err == ""
    with previews(True, shared("maskgit"), 1) as opened:
        assert opened("title") is opened("again") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--preview needs a terminal")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with previews(True, shared("maskgit"), 1) as opened:
        assert opened("title") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert 'pip install "recap-mgm[preview]"' in line


def sample(num: str, out: str) -> int:
    """What a command does with a preview, and nothing else."""
    pipe = load("model")
    Path(out).mkdir()
    try:
        with handle_signals(), previews(True, pipe, int(num)) as opened:
            for result in draw(pipe, pipe.works([1] * int(num), seed=0), opened("title")):
                assert isinstance(result, Done)
                result.image.save(Path(out, f"{result.work.index:06d}.png"))
    except Stopped as stop:
        print(stop, file=sys.stderr)
        return stop.status
    print("all is there")
    return 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small model."""
    monkeypatch.chdir(tmp_path)
    pipe = pipeline("maskgit")
    pipe.options = pipe.options.override(SamplingOptions(full=6, local=4))
    pipe.save_pretrained(tmp_path / "model")
    return tmp_path


def test_a_terminal_is_left_as_it_was(place: Path) -> None:
    status, text = Run(sample, "3", "out").end()
    assert status == 0
    assert "▀" in text
    assert text.count(HIDE) == text.count(SHOW) == 1
    before, after = text.split(SHOW)
    assert "image 3 of 3  finished  decoded 16/16" in before
    assert after.strip() == "all is there"
    pipe = load("model")
    pipe.progress = False
    for index, image in enumerate(pipe([1] * 3, seed=0).images):
        assert np.array_equal(np.asarray(Image.open(f"out/{index:06d}.png")), np.asarray(image))


def test_ctrl_c_gives_the_cursor_back(place: Path) -> None:
    run = Run(sample, "100000", "out")
    run.read(lambda written: written.count(b"decoded") > 3)
    os.write(run.master, b"\x03")
    status, text = run.end()
    assert status == 130
    assert text.rstrip().endswith("stopped by SIGINT")
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_no_color_is_applied(place: Path) -> None:
    status, text = Run(sample, "2", "out", NO_COLOR="1").end()
    assert status == 0
    assert "\x1b[38" not in text
    assert "▀" not in text
    assert "image 2 of 2  finished" in text
