"""Sheets of images: a grid, and runs side by side with their titles."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence

from PIL import Image, ImageDraw, ImageFont

INK = (24, 24, 24)
MIN_TILE = 192  # pixels; smaller tiles are scaled up
MAX_COLUMNS = 8  # columns of a comparison
MARGIN, GAP = 28, 10
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def as_png(image: Image.Image) -> bytes:
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def grid(images: Sequence[Image.Image]) -> Image.Image:
    """All images on one sheet, as square as possible."""
    columns = next(c for c in range(1, len(images) + 1) if c * c >= len(images))
    rows = -(-len(images) // columns)
    width, height = images[0].size
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for index, image in enumerate(images):
        sheet.paste(image, (index % columns * width, index // columns * height))
    return sheet


def comparison(rows: Mapping[str, Sequence[Image.Image]], names: Sequence[str] | None = None) -> Image.Image:
    """The first images of several runs in a row each, their titles above them and names under the columns."""
    shown = min(MAX_COLUMNS, *map(len, rows.values()))
    tiles = [[_tile(image) for image in images[:shown]] for images in rows.values()]
    width, height = tiles[0][0].size
    large, small = ImageFont.load_default(size=22), ImageFont.load_default(size=18)
    labels = [_wrapped(name, small, width) for name in (names or [])[:shown]]
    across = max(shown * (width + GAP) - GAP, *(round(large.getlength(title)) for title in rows))
    down = len(rows) * (height + 60) - 24
    foot = 12 + 24 * max(map(len, labels)) if labels else 0
    sheet = Image.new("RGB", (across + 2 * MARGIN, down + foot + 2 * MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    y = MARGIN
    for title, images in zip(rows, tiles, strict=True):
        draw.text((MARGIN, y + 24), title, INK, large, anchor="ls")
        for column, image in enumerate(images):
            sheet.paste(image, (MARGIN + column * (width + GAP), y + 36))
        y += height + 60
    for column, lines in enumerate(labels):
        middle = MARGIN + column * (width + GAP) + width // 2
        for index, line in enumerate(lines):
            draw.text((middle, y + 2 + 24 * index), line, INK, small, anchor="ms")
    return sheet


def _tile(image: Image.Image) -> Image.Image:
    """The image, doubled until it can be seen."""
    factor = 1
    while min(image.size) * factor < MIN_TILE:
        factor *= 2
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.LANCZOS)


def _wrapped(name: str, font: Font, width: int) -> list[str]:
    """The name in at most two lines that fit the column; what is left over becomes dots."""
    for signs in range(max(len(name), 4), 3, -1):
        lines = textwrap.wrap(name, signs, max_lines=2, placeholder="...", break_on_hyphens=False)
        if all(font.getlength(line) <= width for line in lines):
            break
    return lines
