"""Pixels of a run under way: what is decoded, what was decoded just now, and what is still masked."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recap.frames import Cell
from recap.terminal import FULL, LOCAL, Mark, Sheet

MASKED = np.array([(34, 36, 42), (46, 49, 57)], np.uint8)  # like a chessboard
TARGET = np.array([(50, 58, 78), (66, 76, 102)], np.uint8)
DECODED = np.array((118, 122, 130))  # before there is a picture of it, over the colours around
TINT, VEIL = 0.45, 0.3  # how much of it: of what was just decoded, and of what has no picture yet
KINDS = {"full": FULL, "local": LOCAL}


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
