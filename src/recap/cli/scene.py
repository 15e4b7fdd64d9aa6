"""What a preview shows, and where: the pictures of a run, small ones of those before, a timeline, a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recap.frames import Cell, Frame
from recap.terminal import FULL, LOCAL, Colours, Look, Mark, Sheet

SHOWN = 4  # pictures of one batch; more would be too small to be looked at
LARGEST, LEAST = 64, 8  # pixels of a picture, two in a line of text
SMALL = 12  # pixels that a small picture has at least
MOST_SMALL = 4  # columns of them
GAP = 2
MASKED = np.array([(34, 36, 42), (46, 49, 57)], np.uint8)  # like a chessboard
TARGET = np.array([(50, 58, 78), (66, 76, 102)], np.uint8)
DECODED = np.array((118, 122, 130))  # before there is a picture of it, over the colours around
TINT, VEIL = 0.45, 0.3  # how much of it: of what was just decoded, and of what has no picture yet
KINDS = {"full": FULL, "local": LOCAL}


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes in pixels, and how many pictures are beside and below each other."""

    tile: int = 0
    across: int = 1
    small: int = 0  # side of the pictures of earlier images
    small_across: int = 0
    small_down: int = 0
    timeline: bool = True

    @property
    def room(self) -> int:
        """How many small pictures there are."""
        return self.small_across * self.small_down


def layout_of(columns: int, lines: int, images: int, earlier: int = 0) -> Layout:
    """The largest pictures of a batch that a terminal has room for, with small ones of `earlier` images beside."""
    rows = min(LARGEST // 2, lines - 4)  # a timeline, a line of text, what is said at the end, a prompt
    if rows < LEAST // 2:
        return Layout(timeline=lines > 2)
    width, height = columns - 1, 2 * rows
    best = Layout()
    for across in range(1, images + 1):
        down = -(-images // across)
        room = min((width + GAP) // across, (height + GAP) // down) - GAP
        tile = min(LARGEST, room) // 2 * 2  # an odd height would end within a line
        if tile > best.tile:
            best = Layout(tile, across)
    if best.tile < LEAST:
        return Layout()
    down = -(-images // best.across)
    used, tall = span(best.tile, best.across), span(best.tile, down)
    small_down = max((n for n in (1, 2, 3) if (tall + GAP) // n - GAP >= SMALL), default=0)
    if not earlier or not small_down:
        return best
    small = ((tall + GAP) // small_down - GAP) // 2 * 2
    fitting = (width - used) // (small + GAP)
    small_across = min(fitting, MOST_SMALL, -(-earlier // small_down))
    if small_across < 1:
        return best
    return Layout(best.tile, best.across, small, small_across, small_down)


def span(side: int, count: int) -> int:
    """Pixels along `count` tiles with gaps between them."""
    return count * side + (count - 1) * GAP


def scene(tiles: Sequence[Sheet], earlier: Sequence[Image.Image], layout: Layout) -> Sheet:
    """The tiles of a batch, and at their right the latest of the earlier pictures."""
    down = -(-len(tiles) // layout.across)
    width = span(layout.tile, layout.across) + layout.small_across * (layout.small + GAP)
    sheet = Sheet.blank(span(layout.tile, down), width)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, layout.across)
        sheet.paste(tile, row * (layout.tile + GAP), column * (layout.tile + GAP))
    first = span(layout.tile, layout.across) + GAP
    latest = earlier[-layout.room :] if layout.room else []
    for index, picture in enumerate(latest):
        column, row = divmod(index, layout.small_down)
        place = row * (layout.small + GAP), first + column * (layout.small + GAP)
        sheet.paste(finished(picture, layout.small), *place)
    return sheet


def scaled(picture: Image.Image, side: int, pictured: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
    """A picture in another size (side, side, 3); tokens that are not `pictured` do not run into those that are."""
    if pictured is None or pictured.all():
        return np.array(picture.convert("RGB").resize((side, side), Image.Resampling.HAMMING))
    grid = math.isqrt(len(pictured))
    mask = Image.fromarray(pictured.reshape(grid, grid).astype(np.float32))
    weights = np.array(mask.resize(picture.size, Image.Resampling.NEAREST))
    channels = np.array(picture.convert("RGB"), np.float32).transpose(2, 0, 1) * weights  # (3, h, w)
    planes = [
        np.array(Image.fromarray(plane).resize((side, side), Image.Resampling.HAMMING))
        for plane in (*channels, weights)
    ]
    return (
        np.rint(np.stack(planes[:3], axis=-1) / np.maximum(planes[3], 1e-3)[..., None]).clip(0, 255).astype(np.uint8)
    )


def finished(picture: Image.Image, side: int) -> Sheet:
    """A picture of which nothing is missing."""
    return Sheet(scaled(picture, side), np.full((side, side), Mark.PICTURE, np.uint8))


def unfinished(
    picture: Image.Image | None,
    cells: NDArray[np.uint8],
    pictured: NDArray[np.bool_],
    evaluation: str,
    side: int,
) -> Sheet:
    """A picture of a run: `cells` (N) are its tokens, of which the picture holds those that are `pictured`.

    What was decoded in this sub-step has the colour of its evaluation, and what is masked is a dark chessboard.
    """
    grid = math.isqrt(len(cells))
    along = np.arange(side) * grid // side
    place = along[:, None] * grid + along[None, :]  # (side, side)
    cell, seen = cells[place], pictured[place]
    board = (along[:, None] + along[None, :]) % 2
    pixels = np.zeros((side, side, 3), np.uint8) if picture is None else scaled(picture, side, pictured)
    fresh, kind = cell == Cell.DRAWN, np.array(KINDS[evaluation])
    pixels[fresh] = np.rint((1 - TINT) * pixels[fresh] + TINT * kind)
    pixels[~seen] = around(picture, pictured)[place][~seen]
    pixels[fresh & ~seen] = kind
    marks = np.where(seen, Mark.PICTURE, Mark.FRESH).astype(np.uint8)
    for state, mark, colours in ((Cell.MASKED, Mark.MASKED, MASKED), (Cell.TARGET, Mark.TARGET, TARGET)):
        here = cell == state
        pixels[here], marks[here] = colours[board[here]], mark
    return Sheet(pixels, marks)


def around(picture: Image.Image | None, pictured: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """For every token (N, 3) the colour of what is `pictured` around it, under a veil."""
    grid = math.isqrt(len(pictured))
    if picture is None or not pictured.any():
        return np.broadcast_to(DECODED, (len(pictured), 3)).astype(np.uint8)
    colours = np.array(picture.convert("RGB").resize((grid, grid), Image.Resampling.BOX), float).reshape(-1, 3)
    steps = np.arange(grid)
    apart = (steps[:, None] - steps[None, :]) ** 2  # (grid, grid)
    near = np.exp(-(apart[:, None, :, None] + apart[None, :, None, :]) / 2).reshape(grid**2, grid**2)[:, pictured]
    colours = near @ colours[pictured] / near.sum(axis=1, keepdims=True)
    return np.rint((1 - VEIL) * colours + VEIL * DECODED).astype(np.uint8)


def status(parts: Sequence[tuple[str, int]], width: int) -> str:
    """The parts of a line, without those of the highest ranks where it would be too long; ranks begin with 0."""
    kept = [part for part in parts if part[0]]
    while len(kept) > 1 and sum(len(text) + 2 for text, _ in kept) - 2 > width:
        kept.remove(max(kept, key=lambda part: part[1]))
    return "  ".join(text for text, _ in kept)[:width]


def position(frame: Frame) -> str:
    """Which evaluation a frame comes from, as in "local 17 of 32"."""
    before = frame.schedule.groups[: frame.group - 1]
    if frame.evaluation == "full":
        return f"full {frame.group} of {frame.schedule.full}"
    first = sum(len(group.steps) for group in before)  # sub-steps before the group
    return f"local {sum(group.local for group in before) + frame.step - first - 1} of {frame.schedule.local}"


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def coloured(text: str, evaluation: str, look: Look) -> str:
    return text if look.colours is Colours.NONE else f"{look.paint(KINDS[evaluation])}{text}\x1b[0m"
