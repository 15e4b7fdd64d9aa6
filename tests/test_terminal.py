"""Pictures as text: what a terminal shows is what was to be shown."""

import io
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recap import Cell, cosine
from recap.cli.scene import LARGEST, SHOWN, duration, layout_of, scene, status
from recap.cli.screen import Screen
from recap.core.schedule import Schedule
from recap.pace import Pace
from recap.painting import around, scaled, unfinished
from recap.terminal import LOCAL, Colours, Look, Mark, Sheet, lines_of, look_of, nearest, timeline, width_of
from tests.vt import Terminal

LOOKS = [Look(Colours.TRUE), Look(Colours.INDEXED), Look(Colours.NONE), Look(Colours.NONE, blocks=False)]
levels = st.integers(0, 255)


def sheet_of(height: int, width: int, seed: int = 0) -> Sheet:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 4, (height, width, 3)).astype(np.uint8) * 85  # some neighbours are equal
    return Sheet(pixels, random.choice(np.array(list(Mark), np.uint8), (height, width)))


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 99))
def test_half_blocks_are_the_pixels(height: int, width: int, seed: int) -> None:
    sheet = sheet_of(height, width, seed)
    terminal = Terminal(width, 8)
    terminal.feed("\r\n".join(lines_of(sheet, Look(Colours.TRUE))))
    assert terminal.calm
    for row, column in product(range(height + height % 2), range(width)):
        there = row < height and sheet.marks[row, column] != Mark.BLANK
        wanted = tuple(sheet.pixels[row, column].tolist()) if there else None
        assert terminal.halves(row // 2, column)[row % 2] == wanted


@pytest.mark.parametrize("look", LOOKS, ids=str)
def test_lines_are_as_wide_as_the_picture_in_every_look(look: Look) -> None:
    sheet = sheet_of(8, 10)
    sheet.marks[:] = Mark.PICTURE
    sheet.pixels[:, -1] = 255  # shades end with what is dark
    lines = lines_of(sheet, look)
    assert [width_of(line) for line in lines] == [10] * 4
    text = "".join(lines)
    assert ("\x1b" in text) == (look.colours is not Colours.NONE)
    if not look.blocks:
        assert text.isascii()
    terminal = Terminal(10, 5)
    terminal.feed("\r\n".join(lines))
    assert terminal.calm


@given(levels, levels, levels)
def test_the_nearest_of_256_colours_is_found(red: int, green: int, blue: int) -> None:
    steps = (0, 95, 135, 175, 215, 255)
    table = {16 + 36 * r + 6 * g + b: (steps[r], steps[g], steps[b]) for r, g, b in product(range(6), repeat=3)}
    table |= {232 + i: (8 + 10 * i,) * 3 for i in range(24)}

    def far(number: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(table[number], (red, green, blue), strict=True))

    assert far(nearest(red, green, blue)) == min(map(far, table))


def test_looks_follow_the_environment() -> None:
    def colours(**environment: str) -> Colours:
        return look_of(environment, "utf-8").colours

    assert colours(TERM="xterm-256color", COLORTERM="truecolor") is Colours.TRUE
    assert colours(TERM="xterm-direct") is Colours.TRUE
    assert colours(TERM="screen-256color") is Colours.INDEXED
    assert colours(TERM="vt220") is Colours.NONE
    assert colours(TERM="xterm-256color", COLORTERM="truecolor", NO_COLOR="1") is Colours.NONE
    assert colours(TERM="xterm-256color", NO_COLOR="") is Colours.INDEXED  # empty means unset
    for encoding in ("ascii", None, "no such encoding"):
        assert look_of({"TERM": "xterm", "COLORTERM": "truecolor"}, encoding) == Look(Colours.NONE, blocks=False)


def test_shades_grow_with_the_light() -> None:
    for blocks, ramp in ((True, " ░▒▓█"), (False, " -~=*#%@")):
        seen = []
        for light in range(0, 256, 15):
            sheet = Sheet(np.full((16, 8, 3), light, np.uint8), np.full((16, 8), Mark.PICTURE, np.uint8))
            text = "".join(line.ljust(8) for line in lines_of(sheet, Look(Colours.NONE, blocks)))
            seen.append(sum(map(ramp.index, text)))
        assert seen == sorted(seen)
        assert (seen[0], seen[-1]) == (0, 64 * (len(ramp) - 1))


schedules = st.builds(
    lambda full, local: cosine(256, full=full, local=min(full, local)), st.integers(1, 60), st.integers(0, 60)
)


@given(schedules, st.integers(1, 130), st.data())
def test_a_timeline_fits_and_moves_on(schedule: Schedule, width: int, data: st.DataObject) -> None:
    count = len(schedule.steps)
    step = data.draw(st.integers(0, count - 1))
    for look in LOOKS:
        before, after = (timeline(schedule, done, width, look) for done in (step, step + 1))
        assert width_of(before) == width_of(after) == (width if count > width else width // count * count)
        assert before != after or count > width
    plain = timeline(schedule, count, 2 * count, LOOKS[2])
    assert plain.count("▆") == 2 * schedule.full
    assert plain.count("▂") == 2 * schedule.local


@given(st.integers(1, 300), st.integers(1, 120), st.integers(1, SHOWN), st.integers(0, 20))
def test_layouts_fit_every_terminal(columns: int, lines: int, images: int, earlier: int) -> None:
    layout = layout_of(columns, lines, images, earlier)
    used = 1 + layout.timeline
    if layout.tile:
        tiles = [Sheet.blank(layout.tile, layout.tile)] * images
        sheet = scene(tiles, [Image.new("RGB", (8, 8))] * earlier, layout)
        height, width = sheet.marks.shape
        assert width < columns
        assert height % 2 == 0
        assert layout.tile <= LARGEST
        used += height // 2
    assert used < lines or lines <= 2


def test_a_picture_is_as_large_as_its_terminal_allows() -> None:
    assert layout_of(120, 40, 1).tile == 64  # 64 columns and 32 lines
    assert layout_of(80, 24, 1).tile == 40
    assert layout_of(30, 40, 1).tile == 28
    assert layout_of(120, 40, 4).across == 2
    assert layout_of(200, 20, 4).across == 4
    assert not layout_of(6, 40, 1).tile
    assert layout_of(120, 40, 1, earlier=3).room == 3


def test_what_is_masked_shows_as_such() -> None:
    cells = np.array([Cell.MASKED, Cell.TARGET, Cell.DRAWN, Cell.CONTEXT], np.uint8)
    white = Image.new("RGB", (16, 16), "white")
    sheet = unfinished(white, cells, cells >= Cell.DRAWN, "local", 8)
    corners = [(0, 0), (0, 7), (7, 0), (7, 7)]
    assert [sheet.marks[place] for place in corners] == [Mark.MASKED, Mark.TARGET, Mark.PICTURE, Mark.PICTURE]
    masked, target, drawn, context = (sheet.pixels[place].astype(int) for place in corners)
    assert masked.max() < target.max() < 128
    assert (context == 255).all()
    assert (drawn < 255).any()
    assert abs(drawn - 255 * 0.55 - 0.45 * np.array(LOCAL)).max() < 1
    unseen = unfinished(None, cells, np.zeros(4, bool), "local", 8)
    assert (unseen.pixels[7, 0] == LOCAL).all()
    assert unseen.marks[7, 7] == Mark.FRESH


def test_what_is_masked_does_not_colour_its_neighbours() -> None:
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:, :8] = 200  # tokens 0 and 2 of four; the others are black
    pictured = np.array([True, False, True, False])
    for side in (5, 7, 16):
        assert (scaled(Image.fromarray(pixels), side, pictured)[:, : side // 2] == 200).all()
    assert (around(Image.fromarray(pixels), pictured)[1] > 150).all()


def test_lines_of_text_are_cut_by_rank() -> None:
    parts = [("title", 3), ("image 1 of 2", 1), ("", 5), ("full 1 of 8", 0), ("2.0 s", 2)]
    assert status(parts, 80) == "title  image 1 of 2  full 1 of 8  2.0 s"
    assert status(parts, 35) == "image 1 of 2  full 1 of 8  2.0 s"
    assert status(parts, 25) == "image 1 of 2  full 1 of 8"
    assert status(parts, 12) == "full 1 of 8"
    assert status(parts, 4) == "full"
    assert [duration(s) for s in (0.04, 12.4, 61, 3661)] == ["0.0 s", "12 s", "1 min 01 s", "1 h 01 min"]


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.3)), min_size=50, max_size=50), st.floats(0.05, 0.9))
def test_showing_keeps_within_its_share(steps: list[tuple[float, float]], share: float) -> None:
    now = 0.0
    pace = Pace({"picture": 0.3}, share=share, clock=lambda: now)
    for work, cost in steps:
        now += work
        if pace.due("picture"):
            with pace.showing("picture"):
                now += cost
            assert pace.spent <= share * now + 0.3  # one that took longer than those before


class Shown(io.StringIO):
    """A file whose terminal can be looked at."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal

    def write(self, text: str) -> int:
        self.terminal.feed(text.replace("\n", "\r\n"))
        return len(text)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    file = Shown(Terminal(20, 10))
    monkeypatch.setattr(Screen, "size", property(lambda self: (file.terminal.columns, file.terminal.lines)))
    return file


def test_blocks_take_each_others_place(shown: Shown) -> None:
    terminal = shown.terminal
    terminal.feed("$ recap\r\n")
    with Screen(shown) as screen:
        for block in (["a", "b", "c"], ["a", "x", "c"], ["long line", "b"], ["1", "2", "3", "4"]):
            screen.draw(block)
            assert terminal.text == ["$ recap", *block]
            assert not terminal.cursor
    assert terminal.calm
    terminal.feed("$ ")
    assert terminal.text == ["$ recap", "1", "2", "3", "4", "$"]


def test_a_block_at_the_bottom_scrolls_once(shown: Shown) -> None:
    shown.terminal.feed("\r\n".join("0123456789"))
    with Screen(shown) as screen:
        for _ in range(5):
            screen.draw([f"line {i}" for i in range(9)])
    assert shown.terminal.text == [f"line {i}" for i in range(9)]
    assert "line 0" not in shown.terminal.scrolled


def test_other_messages_are_left_alone(shown: Shown) -> None:
    with Screen(shown) as screen:
        screen.draw(["a", "b"])
        screen.settle()
        screen.draw(["c"])
        screen.draw(["d"])
    assert shown.terminal.text == ["a", "b", "d"]


@pytest.mark.parametrize(("columns", "lines"), [(30, 12), (10, 10), (20, 4), (5, 3), (18, 9)])
def test_another_size_leaves_one_block(shown: Shown, columns: int, lines: int) -> None:
    with Screen(shown) as screen:
        screen.draw(["0123456789012345"] * 6)
        bigger = Terminal(columns, lines)
        bigger.cells[: min(6, lines - 1)] = [list(row) for row in shown.terminal.cells[: min(6, lines - 1)]]
        bigger.row, bigger.cursor = min(6, lines - 1), False
        shown.terminal = bigger
        screen.draw(["new"])
        screen.draw(["newer"])
    assert bigger.text == ["newer"]
    assert bigger.calm


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_cursor_is_back_after_errors(shown: Shown, error: Any) -> None:
    def fail() -> None:
        with Screen(shown) as screen:
            screen.draw(["\x1b[38;5;9mred"])
            assert not shown.terminal.cursor
            raise error

    with pytest.raises(error):
        fail()
    assert shown.terminal.calm
    with Screen(shown):
        pass  # nothing was drawn
    assert shown.terminal.calm
