"""Pictures of a run as lines of text: half blocks with colours, or shades of blocks where there are none.

Everything here turns values into text. What is written where, and when, is `recap.cli.screen`'s affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from recap.core.schedule import Schedule

Pixels = NDArray[np.uint8]  # (h, w, 3)
FULL, LOCAL, FAINT = (104, 160, 226), (244, 146, 62), (92, 96, 104)  # of evaluations, and of those to come
RAMP = {True: " ░▒▓█", False: " -~=*#%@"}  # from dark to bright, with block characters and without
SIGNS = {True: "··:+", False: "..:+"}  # by `Mark`, where there are no colours
BAYER = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) / 16 - 15 / 32
LEVELS = "▁▂▃▄▅▆▇█"
RESET = "\x1b[0m"


class Colours(Enum):
    """What colours a terminal has."""

    TRUE = "24 bits"
    INDEXED = "256"
    NONE = "none"


class Mark(IntEnum):
    """What is at a pixel."""

    BLANK = 0  # the terminal's own background
    MASKED = 1
    TARGET = 2
    FRESH = 3  # decoded, without a picture yet
    PICTURE = 4


@dataclass(frozen=True, slots=True)
class Look:
    """What a terminal can show."""

    colours: Colours
    blocks: bool = True  # whether its encoding has block characters

    def paint(self, colour: Sequence[int]) -> str:
        """The sequence that lets text have a colour; nothing where there are none."""
        if self.colours is Colours.NONE:
            return ""
        return f"\x1b[38;{self.code(int(colour[0]), int(colour[1]), int(colour[2]))}m"

    def code(self, red: int, green: int, blue: int) -> str:
        return f"2;{red};{green};{blue}" if self.colours is Colours.TRUE else f"5;{nearest(red, green, blue)}"


@dataclass(slots=True)
class Sheet:
    """Pixels, and what is at each of them."""

    pixels: Pixels
    marks: NDArray[np.uint8]  # (h, w) `Mark`s

    @classmethod
    def blank(cls, height: int, width: int) -> Sheet:
        return cls(np.zeros((height, width, 3), np.uint8), np.full((height, width), Mark.BLANK, np.uint8))

    def paste(self, other: Sheet, top: int, left: int) -> None:
        height, width = other.marks.shape
        self.pixels[top : top + height, left : left + width] = other.pixels
        self.marks[top : top + height, left : left + width] = other.marks


def look_of(environment: Mapping[str, str], encoding: str | None) -> Look:
    """What the terminal of this environment can show. https://no-color.org is heeded."""
    try:
        "▀░·".encode(encoding or "ascii")
        blocks = True
    except (UnicodeEncodeError, LookupError):
        blocks = False
    term, colour = environment.get("TERM", ""), environment.get("COLORTERM", "").lower()
    if environment.get("NO_COLOR") or not blocks:
        return Look(Colours.NONE, blocks)
    if colour in ("truecolor", "24bit") or term.endswith("-direct") or environment.get("WT_SESSION"):
        return Look(Colours.TRUE)
    return Look(Colours.INDEXED if "256" in term or colour else Colours.NONE)


@cache
def nearest(red: int, green: int, blue: int) -> int:
    """The number of the nearest of a terminal's 256 colours, of those that all terminals have alike."""
    steps = (0, 95, 135, 175, 215, 255)
    cube = [min(range(6), key=lambda i, v=value: abs(steps[i] - v)) for value in (red, green, blue)]  # type: ignore[misc]
    grey = min(23, max(0, round(((red + green + blue) / 3 - 8) / 10)))

    def far(colour: Sequence[int]) -> int:
        return sum((a - b) ** 2 for a, b in zip(colour, (red, green, blue), strict=True))

    if far([8 + 10 * grey] * 3) < far([steps[i] for i in cube]):
        return 232 + grey
    return 16 + 36 * cube[0] + 6 * cube[1] + cube[2]


def lines_of(sheet: Sheet, look: Look) -> list[str]:
    """A sheet as lines, two rows of pixels in each; what is blank at their ends is left out."""
    height, width = sheet.marks.shape
    if height % 2:
        taller = Sheet.blank(height + 1, width)
        taller.paste(sheet, 0, 0)
        sheet = taller
    if look.colours is Colours.NONE:
        return _shades(sheet, look)
    rows = zip(sheet.pixels.tolist(), (sheet.marks != Mark.BLANK).tolist(), strict=True)
    return [_half_blocks(*upper, *lower, look) for upper, lower in zip(rows, rows, strict=True)]


def _half_blocks(
    tops: list[list[int]], upper: list[bool], bottoms: list[list[int]], lower: list[bool], look: Look
) -> str:
    """One line of text, with no more colour sequences than there are changes of colour."""
    parts: list[str] = []
    ink = ground = ""
    used, kept = False, 0
    for top, above, bottom, below in zip(tops, upper, bottoms, lower, strict=True):
        first = look.code(*top) if above else ""
        second = look.code(*bottom) if below else ""
        wanted_ink, wanted_ground, sign = first, second, "▀"
        if first == second:
            wanted_ink, sign = ink, " "
        elif not first:
            wanted_ink, wanted_ground, sign = second, "", "▄"
        changes = []
        if wanted_ink != ink:
            changes.append(f"38;{wanted_ink}")
        if wanted_ground != ground:
            changes.append(f"48;{wanted_ground}" if wanted_ground else "49")
        if changes:
            parts.append(f"\x1b[{';'.join(changes)}m")
            ink, ground, used = wanted_ink, wanted_ground, True
        parts.append(sign)
        if first or second:
            kept = len(parts)
    return "".join(parts[:kept]) + (RESET if used else "")


def _shades(sheet: Sheet, look: Look) -> list[str]:
    """Lines of shades; where nothing is decoded, signs."""
    ramp, signs = np.array(list(RAMP[look.blocks])), np.array(list(SIGNS[look.blocks]))
    light = sheet.pixels @ np.array([0.299, 0.587, 0.114]) / 255  # (h, w)
    light = (light[::2] + light[1::2]) / 2
    height, width = light.shape
    dither = np.tile(BAYER, (-(-height // 4), -(-width // 4)))[:height, :width] / (len(ramp) - 1)
    index = np.clip(np.rint((light + dither) * (len(ramp) - 1)), 0, len(ramp) - 1).astype(int)
    marks = np.maximum(sheet.marks[::2], sheet.marks[1::2])
    text = np.where(marks == Mark.PICTURE, ramp[index], signs[np.minimum(marks, Mark.FRESH)])
    text[marks == Mark.BLANK] = " "
    return ["".join(row).rstrip() for row in text]


def timeline(schedule: Schedule, step: int, width: int, look: Look) -> str:
    """The evaluations of a run in at most `width` characters, full ones high and local ones low; `step` are done.

    Where there are more of them than characters, one stands for several that follow each other; where there are
    few, each takes several.
    """
    kinds = [index == 0 for group in schedule for index in range(len(group.steps))]
    count = len(kinds)
    size, wide = min(count, width), max(1, width // count)
    parts, now = [], ""
    for column in range(size):
        first, last = column * count // size, (column + 1) * count // size
        share = sum(kinds[first:last]) / (last - first)
        done = step > first
        if look.colours is Colours.NONE:
            sign = ("·" if look.blocks else ".") if not done else LEVELS[round(1 + 4 * share)]
            parts.append(wide * (sign if look.blocks or not done else "#" if share > 0.5 else "="))
            continue
        mixed = [round(share * full + (1 - share) * local) for full, local in zip(FULL, LOCAL, strict=True)]
        colour = look.paint(mixed if done else FAINT)
        parts.append(("" if colour == now else colour) + wide * LEVELS[round(1 + 4 * share)])
        now = colour
    return "".join(parts) + (RESET if now else "")


def width_of(line: str) -> int:
    """The columns that a line of this module's takes, colours left out."""
    shown, inside = 0, False
    for sign in line:
        if sign == "\x1b":
            inside = True
        elif not inside:
            shown += 1
        elif sign.isalpha():
            inside = False
    return shown
