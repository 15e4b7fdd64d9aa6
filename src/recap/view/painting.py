"""Pixels of a run under way: what is decoded, what was decoded just now, what is masked, and where all is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recap.view.frames import TokenState

MAX_TILE, MIN_TILE = 64, 8  # pixels of a picture
MIN_THUMBNAIL = 12  # pixels of the small pictures of earlier images
GAP = 2  # pixels between pictures
COLOURS = {"full": (104, 160, 226), "local": (244, 146, 62)}  # of evaluations
MASKED = ((34, 36, 42), (46, 49, 57))  # like a chessboard
TARGET = ((50, 58, 78), (66, 76, 102))
FAILED = (96, 32, 32)  # of an image with NaN or inf
UNSEEN = (153, 153, 153)  # of what is decoded, but not in the picture yet
TINT = 0.45  # how much of the evaluation's colour lies over what was just decoded


def unfinished(picture: Image.Image | None, states: NDArray[np.uint8], evaluation: str, side: int) -> Image.Image:
    """A picture of a run as a tile: `states` (N) are its tokens', over what is decoded the picture of it.

    What was decoded in this sub-step is tinted with the colour of its evaluation, and what is masked is dark.
    """
    tokens = math.isqrt(len(states))
    fine = -(-side // tokens)  # pixels of a token before some are left out: no token runs into its neighbours
    along = np.arange(side) * tokens * fine // side
    state = states.reshape(tokens, tokens)[along[:, None] // fine, along // fine]  # (side, side)
    board = (along[:, None] // fine + along // fine) % 2
    whole = (picture or Image.new("RGB", (1, 1), UNSEEN)).convert("RGB")
    pixels = np.array(whole.resize((tokens * fine,) * 2, Image.Resampling.BOX))[along[:, None], along]
    fresh = state == TokenState.DRAWN
    pixels[fresh] = np.rint((1 - TINT) * pixels[fresh] + TINT * np.array(COLOURS[evaluation]))
    for kind, colours in ((TokenState.MASKED, MASKED), (TokenState.TARGET, TARGET)):
        pixels[state == kind] = np.array(colours)[board[state == kind]]
    return Image.fromarray(pixels)


def finished(picture: Image.Image | None, side: int) -> Image.Image:
    """A picture as a tile; without one, what stands for an image that failed."""
    if picture is None:
        return Image.new("RGB", (side, side), FAILED)
    return picture.convert("RGB").resize((side, side), Image.Resampling.HAMMING)


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes in pixels, and how many pictures are beside and below each other."""

    tile: int = 0
    across: int = 1
    thumbnail: int = 0
    thumbnails_across: int = 0
    thumbnails_down: int = 1

    @property
    def thumbnails(self) -> int:
        """How many pictures of earlier images there are."""
        return self.thumbnails_across * self.thumbnails_down

    @classmethod
    def of(cls, columns: int, lines: int, images: int, earlier: int = 0) -> Layout:
        """The largest pictures that fit, with small ones of `earlier` images at their right if there is room."""
        width, height = columns - 1, 2 * (lines - 4)  # the timeline, the line of text, and two of the shell's

        def room(across: int) -> int:
            down = -(-images // across)
            return min(MAX_TILE, (width + GAP) // across - GAP, (height + GAP) // down - GAP) // 2 * 2

        across = max(range(1, images + 1), key=room)
        tile = room(across)
        if tile < MIN_TILE:
            return cls()
        tall = span(tile, -(-images // across))
        down = min(3, max(1, (tall + GAP) // (MIN_THUMBNAIL + GAP)))
        small = (tall + GAP) // down // 2 * 2 - GAP
        fitting = (width - span(tile, across)) // (small + GAP)
        return cls(tile, across, small, min(max(0, fitting), -(-earlier // down)), down)

    def scene(self, tiles: Sequence[Image.Image], earlier: Sequence[Image.Image | None]) -> Image.Image:
        """The tiles of a batch, and at their right the latest of the earlier pictures."""
        left = span(self.tile, self.across) + GAP
        size = (
            left + self.thumbnails_across * (self.thumbnail + GAP) - GAP,
            span(self.tile, -(-len(tiles) // self.across)),
        )
        scene = Image.new("RGBA", size)
        for index, tile in enumerate(tiles):
            row, column = divmod(index, self.across)
            scene.paste(tile, (column * (self.tile + GAP), row * (self.tile + GAP)))
        for index, picture in enumerate(earlier[-self.thumbnails :] if self.thumbnails else []):
            column, row = divmod(index, self.thumbnails_down)
            place = left + column * (self.thumbnail + GAP), row * (self.thumbnail + GAP)
            scene.paste(finished(picture, self.thumbnail), place)
        return scene


def span(side: int, count: int) -> int:
    """Pixels along `count` tiles with gaps between them."""
    return count * (side + GAP) - GAP


def known_part(picture: Image.Image, states: NDArray[np.uint8]) -> Image.Image:
    """What a picture holds at the tokens that are known; the rest has not been seen yet."""
    tokens = math.isqrt(len(states))
    known = Image.fromarray((states == TokenState.KNOWN).reshape(tokens, tokens))
    unseen = Image.new("RGB", picture.size, UNSEEN)
    return Image.composite(picture.convert("RGB"), unseen, known.resize(picture.size, Image.Resampling.NEAREST))
