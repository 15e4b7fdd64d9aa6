"""What results look like: in a line of text, in a notebook, and while they are drawn there."""

import base64
import io
import pickle
import re
import sys
from dataclasses import fields, replace
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recap import Frame, Output, Pipeline, Schedule, Step, cosine, published
from recap.core.timeline import FAINT, FULL, LOCAL, timeline_svg
from recap.distributed.fingerprint import short_digest
from recap.notebook import frame_html, watch
from recap.pipeline import OUTPUT_TYPES
from recap.showing import LARGEST, MOST
from tests import tiny
from tests.test_pipeline import FAMILIES, SCHEDULE, draw, pipeline, request, shared

DATA = re.compile(r'src="data:image/(?:png|jpeg);base64,([^"]+)"')


def inside(html: str) -> list[Image.Image]:
    """The pictures of which the data are in a page; there is nothing in it that would have to be fetched."""
    assert html.count("<img") == len(DATA.findall(html))
    assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in DATA.findall(html)]


def well_formed(html: str) -> ElementTree.Element:
    text = re.sub(r"(<img[^>]*)>", r"\1/>", html).replace("&ensp;", " ")
    return ElementTree.fromstring(f"<div>{text}</div>")


@pytest.mark.parametrize("kind", OUTPUT_TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_one_line_and_a_page(family: str, kind: str) -> None:
    result = draw(shared(family), family, output_type=kind)
    line = repr(result)
    assert len(line) < 160
    assert "tensor(" not in line
    assert ("2 images" in line, str(SCHEDULE) in line) == (True, True)
    html = result._repr_html_()
    pictures = inside(html)
    assert [picture.size for picture in pictures] == ([] if kind == "latent" else [(8, 8)] * 2)
    well_formed(html)
    names = [f"class {label}" for label in request(family).get("labels", [])]
    assert result.names == (tuple(names) or None)
    assert all((name in html) == (kind != "latent") for name in names)


def test_names_cannot_break_a_page_and_large_results_are_cut() -> None:
    pictures = [Image.new("RGB", (500, 500), (index, 0, 0)) for index in range(40)]
    names = ("<script>alert(1)</script>",) * 40
    result = Output(pictures, torch.zeros(40, 16, dtype=torch.long), SCHEDULE, names)
    html = result._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    shown = inside(html)
    assert len(shown) == MOST
    assert all(picture.size == (LARGEST, LARGEST) for picture in shown)
    assert f"{40 - MOST} more" in html
    assert len(html) < 100_000
    well_formed(html)


def test_pages_show_the_images_themselves() -> None:
    """Small pictures come without any loss: a PNG takes less room than a JPEG."""
    result = draw(shared("maskgit"), "maskgit")
    for shown, own in zip(inside(result._repr_html_()), result.images, strict=True):
        assert np.array_equal(np.asarray(shown.convert("RGB")), np.asarray(own))


def test_edits_say_what_was_drawn_anew() -> None:
    pipe = shared("maskgit")
    image = draw(pipe, "maskgit").images[0]
    masks = np.zeros((2, 8, 8), bool)
    masks[0, :, 4:] = masks[1, 2:, :] = True
    result = pipe.edit(image, masks, [1, 2], seed=0, schedule=SCHEDULE)
    assert "2 images of 8x8, 8 to 12 of 16 ids each drawn anew" in repr(result)
    html = result._repr_html_()
    well_formed(html)
    pictures = inside(html)
    assert [picture.size for picture in pictures] == [(8, 8), (4, 4)] * 2  # an image, and its mask
    for picture, masked in zip(pictures[1::2], result.masked, strict=True):
        white = (np.asarray(picture.convert("RGB")) > 250).all(axis=-1)
        assert np.array_equal(~white.flatten(), masked.numpy())
    assert all(name in html for name in ("class 1", "class 2"))
    latent = pipe.edit(image, masks, [1, 2], seed=0, schedule=SCHEDULE, output_type="latent")
    assert inside(latent._repr_html_()) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_do_not_flood_the_screen(family: str) -> None:
    frames = list(shared(family).stream(**request(family), seed=0, schedule=SCHEDULE))
    for frame in frames:
        line = repr(frame)
        assert len(line) < 160
        assert f"{frame.step} of {frame.steps}" in line
        assert f"{frame.decoded} of 16 tokens of 2 images" in line
    kinds = [frame.position.split()[0] for frame in frames]
    assert kinds == [frame.evaluation for frame in frames]
    numbers = {
        kind: [int(f.position.split()[1]) for f in frames if f.evaluation == kind] for kind in ("full", "local")
    }
    assert numbers == {
        "full": list(range(1, SCHEDULE.full + 1)),
        "local": list(range(1, SCHEDULE.local + 1)),
    }


@pytest.mark.parametrize("schedule", [SCHEDULE, published("mar-huge", full=96, local=32), cosine(8, full=1, known=3)])
def test_schedules_are_short_and_lose_nothing(schedule: Schedule) -> None:
    assert len(repr(schedule)) < 120
    assert repr(schedule).startswith(f"<Schedule {schedule}: {schedule.tokens} tokens")
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert [field.name for field in fields(schedule)] == ["groups", "known"]
    everything = f"Schedule(groups={schedule.groups!r}, known={schedule.known})"
    assert schedule.spelled() == everything
    space = {"Schedule": Schedule, "Group": type(schedule.groups[0]), "Step": Step}
    assert eval(schedule.spelled(), space) == schedule


def test_digests_tell_schedules_apart_whose_lines_are_equal() -> None:
    (first, *rest) = SCHEDULE.groups
    warmer = replace(first, steps=(replace(first.steps[0], token_temperature=1.5), *first.steps[1:]))
    other = replace(SCHEDULE, groups=(warmer, *rest))
    assert repr(other) == repr(SCHEDULE)
    assert short_digest(other) != short_digest(SCHEDULE)
    assert short_digest(replace(SCHEDULE)) == short_digest(SCHEDULE)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 80))
def test_a_timeline_has_a_bar_for_every_sub_step(full: int, local: int, done: int) -> None:
    schedule = cosine(256, full=full, local=min(full, local))
    done = min(done, len(schedule.steps))
    paths = ElementTree.fromstring(timeline_svg(schedule, done)).findall("{*}path")
    bars = {(path.get("fill"), path.get("opacity")): path.get("d", "").count("M") for path in paths}
    faint = str(FAINT)
    assert bars.get((FULL, "1"), 0) + bars.get((FULL, faint), 0) == schedule.full
    assert bars.get((LOCAL, "1"), 0) + bars.get((LOCAL, faint), 0) == schedule.local
    assert bars.get((FULL, "1"), 0) + bars.get((LOCAL, "1"), 0) == done
    heights = [float(high) for path in paths for high in re.findall(r"v-([\d.]+)", path.get("d", ""))]
    assert max(heights) <= 44
    page = schedule._repr_html_()
    well_formed(page)
    assert f"{schedule.full} full" in page
    assert len(page) < 5000


@pytest.mark.parametrize("family", FAMILIES)
def test_pipelines_say_what_they_are(family: str) -> None:
    line = repr(shared(family))
    assert type(shared(family).model.module).__name__ in line
    assert "8x8 pixels from 16 tokens" in line
    assert "float32" in line
    assert ("5 classes" in line) == (family != "mage")
    bare = repr(Pipeline(tiny.model(family)))
    assert "16 tokens, no tokenizer" in bare
    assert max(map(len, f"{line}\n{bare}".splitlines())) < 80
    other = pipeline(family)
    other.schedule = SCHEDULE
    assert "4+3 evaluations" in repr(other)


class Handle:
    """What a notebook has shown in one place."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> "Handle":
        assert (raw, display_id, self.shown) == (True, True, [])
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Handle:
    handle, module = Handle(), ModuleType("IPython.display")
    module.display = handle.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handle


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_can_be_watched(family: str, notebook: Handle) -> None:
    last = watch(shared(family).stream(**request(family), seed=0, schedule=SCHEDULE))
    assert isinstance(last, Frame)
    assert last.last
    assert torch.equal(last.tokens, draw(shared(family), family).tokens)
    assert notebook.shown
    assert notebook.shown[-1]["text/plain"] == repr(last)
    (picture,) = inside(notebook.shown[-1]["text/html"])
    assert picture.size == (256, 128)
    assert f"decoded {last.decoded} of 16" in notebook.shown[-1]["text/html"]


def test_a_frame_on_a_page_marks_what_is_masked() -> None:
    first = next(shared("mar").stream([1], seed=0, schedule=SCHEDULE))
    html = frame_html(first)
    well_formed(html)
    (picture,) = inside(html)
    tiles = np.asarray(picture.convert("RGB"), int).reshape(4, 32, 4, 32, 3).max(axis=(1, 3, 4)).flatten()
    assert np.array_equal(tiles < 110, first.masked[0].numpy())  # dark


def test_watching_needs_ipython_and_frames(notebook: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no frames to watch"):
        watch(iter(()))
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    stream: Any = shared("mar").stream([1], seed=0, schedule=SCHEDULE)
    with pytest.raises(ImportError, match="needs IPython, which is not installed; pip install"):
        watch(stream)
