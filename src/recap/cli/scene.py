"""What a preview shows, and where: the pictures of a run, small ones of those before, a timeline, a line of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from recap.painting import KINDS, finished
from recap.terminal import Colours, Look, Sheet

SHOWN = 4  # pictures of one batch; more would be too small to be looked at
LARGEST, LEAST = 64, 8  # pixels of a picture, two in a line of text
SMALL = 12  # pixels that a small picture has at least
MOST_SMALL = 4  # columns of them
GAP = 2


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


def status(parts: Sequence[tuple[str, int]], width: int) -> str:
    """The parts of a line, without those of the highest ranks where it would be too long; ranks begin with 0."""
    kept = [part for part in parts if part[0]]
    while len(kept) > 1 and sum(len(text) + 2 for text, _ in kept) - 2 > width:
        kept.remove(max(kept, key=lambda part: part[1]))
    return "  ".join(text for text, _ in kept)[:width]


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def coloured(text: str, evaluation: str, look: Look) -> str:
    return text if look.colours is Colours.NONE else f"{look.paint(KINDS[evaluation])}{text}\x1b[0m"
