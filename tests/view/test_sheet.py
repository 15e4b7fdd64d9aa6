"""Sheets: every image where it belongs, text around them, nothing cut off."""

import numpy as np
import pytest
from PIL import Image, ImageFont

from recap.view.sheet import GAP, MARGIN, MAX_COLUMNS, _wrapped, comparison, grid

Colour = tuple[int, int, int]


def tile(colour: Colour, side: int = 200) -> Image.Image:
    return Image.new("RGB", (side, side), colour)


def colours(count: int, first: int = 0) -> list[Colour]:
    return [(200, 10 * (first + i), 60) for i in range(count)]


def dark(image: Image.Image) -> int:
    """How many pixels have ink."""
    return int((np.asarray(image.convert("L")) < 128).sum())


def rows_with(sheet: Image.Image, colour: Colour) -> np.ndarray:
    return np.argwhere((np.asarray(sheet) == colour).all(-1))


@pytest.mark.parametrize(("count", "shape"), [(1, (1, 1)), (2, (2, 1)), (3, (2, 2)), (5, (3, 2)), (9, (3, 3))])
def test_grid_holds_every_image_once(count: int, shape: tuple[int, int]) -> None:
    images = [tile(colour, 20) for colour in colours(count)]
    sheet = grid(images)
    assert sheet.size == (20 * shape[0], 20 * shape[1])
    for index, colour in enumerate(colours(count)):
        places = rows_with(sheet, colour)
        assert len(places) == 400
        assert tuple(places[0]) == (index // shape[0] * 20, index % shape[0] * 20)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_columns_line_up_and_names_stand_under_them(count: int) -> None:
    upper, lower = colours(count), colours(count, count)
    rows = {"plain 64 steps: 12.3 s": [tile(c) for c in upper], "reused 48+16": [tile(c) for c in lower]}
    sheet = comparison(rows, [f"name {i}" for i in range(count)])
    for column in range(count):
        above, below = rows_with(sheet, upper[column]), rows_with(sheet, lower[column])
        assert len(above) == len(below) == 200 * 200
        left = MARGIN + column * (200 + GAP)
        assert above[0][1] == below[0][1] == left
        under = sheet.crop((left, int(below[-1][0]) + 1, left + 200, sheet.height))
        assert dark(under) > 50
    first, second = rows_with(sheet, upper[0])[0][0], rows_with(sheet, lower[0])[0][0]
    assert dark(sheet.crop((0, 0, sheet.width, int(first)))) > 100
    assert dark(sheet.crop((0, int(first) + 200, sheet.width, int(second)))) > 100
    frame = np.asarray(sheet)
    assert all((edge == 255).all() for edge in (frame[:8], frame[-8:], frame[:, :8], frame[:, -8:]))


def test_small_tiles_are_scaled_up_and_large_ones_are_not() -> None:
    for side, shown in ((8, 256), (128, 256), (192, 192), (256, 256)):
        sheet = comparison({"a": [tile((200, 0, 0), side)] * 2})
        assert len(rows_with(sheet, (200, 0, 0))) == 2 * shown * shown


def test_wide_titles_make_room() -> None:
    sheet = comparison({"a title that is much wider than one tile, and more on top": [tile((200, 0, 0))]})
    assert (np.asarray(sheet)[:, -MARGIN // 2 :] == 255).all()
    assert sheet.width > 200 + 2 * MARGIN


def test_only_the_first_columns_are_shown_and_names_need_room() -> None:
    def sheet(columns: int, *names: str) -> Image.Image:
        return comparison({"a": [tile((200, 0, 0))] * columns}, [*names] * columns or None)

    assert sheet(MAX_COLUMNS + 5, "x").size == sheet(MAX_COLUMNS, "x").size
    assert sheet(1, "x").height > sheet(1).height


@pytest.mark.parametrize(
    "name", ["rose", "hard-leaved pocket orchid", "a very " * 20 + "long name", "x" * 200, "", "colt's foot"]
)
def test_names_fit_their_column(name: str) -> None:
    font = ImageFont.load_default(size=18)
    lines = _wrapped(name, font, 200)
    assert len(lines) <= 2
    assert all(font.getlength(line) <= 201 for line in lines)
    joined = " ".join(lines)
    assert joined == name or joined.endswith("...")
