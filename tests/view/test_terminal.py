"""Pictures as text: what a terminal shows is what was to be shown."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.color import Color
from rich.console import Console
from rich.segment import Segment

from recap import TokenState, cosine
from recap.core.schedule import Schedule
from recap.view.pace import DisplayBudget
from recap.view.painting import COLOURS, FAILED, MAX_TILE, TINT, UNSEEN, Layout, finished, known_part, unfinished
from recap.view.terminal import MAX_SHOWN, HalfBlocks, duration, timeline

CONSOLE = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=150, height=60)
Colour = tuple[int, ...] | None


def halves(segment: Segment) -> list[tuple[Colour, Colour]]:
    """The colours of the upper and the lower half of each character."""

    def of(colour: Color | None) -> Colour:
        return None if colour is None else tuple(colour.get_truecolor())

    style = segment.style
    ink, ground = (None, None) if style is None else (of(style.color), of(style.bgcolor))
    return [{" ": (ground, ground), "▀": (ink, ground), "▄": (ground, ink)}[sign] for sign in segment.text]


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_half_blocks_are_the_pixels(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 4, (height, width, 4)).astype(np.uint8) * 85  # some neighbours are equal
    pixels[..., 3] = random.integers(0, 2, (height, width)) * 255
    lines = CONSOLE.render_lines(HalfBlocks(Image.fromarray(pixels)), pad=False)
    assert len(lines) == -(-height // 2)
    for row, line in enumerate(lines):
        cells = [pair for segment in line for pair in halves(segment)]
        assert len(cells) == width
        for column, cell in enumerate(cells):
            for colour, y in zip(cell, (2 * row, 2 * row + 1), strict=True):
                opaque = y < height and pixels[y, column, 3]
                assert colour == (tuple(pixels[y, column, :3].tolist()) if opaque else None)


schedules = st.builds(
    lambda full, local: cosine(256, full=full, local=min(full, local)), st.integers(1, 60), st.integers(0, 60)
)


@given(schedules, st.integers(1, 130), st.data())
def test_a_timeline_fits_and_moves_on(schedule: Schedule, width: int, data: st.DataObject) -> None:
    count = len(schedule.steps)
    step = data.draw(st.integers(0, count - 1))
    before, after = (timeline(schedule, done, width) for done in (step, step + 1))
    assert len(before) == len(after) == (width if count > width else width // count * count)
    assert before != after or count > width
    whole = timeline(schedule, count, 2 * count)
    assert whole.plain.count("▆") == 2 * schedule.full
    assert whole.plain.count("▂") == 2 * schedule.local


@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, MAX_SHOWN), st.integers(0, 20))
def test_layouts_fit_every_terminal(columns: int, lines: int, images: int, earlier: int) -> None:
    layout = Layout.of(columns, lines, images, earlier)
    if layout.tile:
        tile = Image.new("RGB", (layout.tile, layout.tile))
        scene = layout.scene([tile] * images, [tile] * earlier)
        assert scene.width < columns
        assert scene.height % 2 == 0
        assert layout.tile <= MAX_TILE
        assert scene.height // 2 + 2 < lines


def test_a_picture_is_as_large_as_its_terminal_allows() -> None:
    assert Layout.of(120, 40, 1).tile == 64  # 64 columns and 32 lines
    assert Layout.of(80, 24, 1).tile == 40
    assert Layout.of(30, 40, 1).tile == 28
    assert Layout.of(120, 40, 4).across == 2
    assert Layout.of(200, 20, 4).across == 4
    assert Layout.of(6, 40, 1).tile == 0
    assert Layout.of(120, 40, 1, earlier=3).thumbnails == 3


def test_what_is_masked_shows_as_such() -> None:
    states = np.array([TokenState.MASKED, TokenState.TARGET, TokenState.DRAWN, TokenState.CONTEXT], np.uint8)
    pixels = np.array(unfinished(Image.new("RGB", (16, 16), "white"), states, "local", 8)).astype(int)
    masked, target, drawn, context = (pixels[place] for place in ((0, 0), (0, 7), (7, 0), (7, 7)))
    assert masked.max() < target.max() < 128
    assert (context == 255).all()
    assert abs(drawn - (255 * (1 - TINT) + TINT * np.array(COLOURS["local"]))).max() < 1
    assert tuple(np.array(unfinished(None, states, "local", 8))[7, 7]) == UNSEEN
    assert np.array(finished(None, 4)).reshape(-1, 3).tolist() == [list(FAILED)] * 16


@pytest.mark.parametrize("side", [5, 7, 16, 22])
def test_tokens_do_not_run_into_their_neighbours(side: int) -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 200  # tokens 0 and 2 of four; the others are black
    tile = np.array(unfinished(Image.fromarray(pixels), np.full(4, TokenState.CONTEXT, np.uint8), "full", side))
    assert set(tile.flatten().tolist()) == {0, 200}


def test_an_edit_begins_with_what_is_known() -> None:
    states = np.array([TokenState.KNOWN, TokenState.MASKED, TokenState.CONTEXT, TokenState.KNOWN], np.uint8)
    part = np.array(known_part(Image.new("RGB", (4, 4), "red"), states))
    assert tuple(part[0, 0]) == tuple(part[3, 3]) == (255, 0, 0)
    assert tuple(part[0, 3]) == tuple(part[3, 0]) == UNSEEN


def test_times_are_for_people() -> None:
    assert [duration(s) for s in (0.04, 12.4, 61, 3661)] == ["0.0 s", "12 s", "1 min 01 s", "1 h 01 min"]


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.3)), min_size=50, max_size=50), st.floats(0.05, 0.9))
def test_showing_keeps_within_its_share(steps: list[tuple[float, float]], share: float) -> None:
    now = 0.0
    budget = DisplayBudget({"picture": 0.3}, share=share, clock=lambda: now)
    for work, cost in steps:
        now += work
        if budget.due("picture"):
            with budget.showing("picture"):
                now += cost
            assert budget.spent <= share * now + 0.3  # one that took longer than those before
