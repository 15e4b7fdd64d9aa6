"""A run in a terminal, drawn by rich: pictures of half blocks or texts, a bar, and a line of words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from recap.core.canvas import Canvas
from recap.core.memory import is_out_of_memory, release
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget
from recap.view.say import printable

if TYPE_CHECKING:
    from recap.pipelines import Pipeline
    from recap.runs.works import Done, Failed, Work

MAX_SHOWN = 4  # of one batch; more would be too small to be looked at
MAX_SIDE, MIN_SIDE = 64, 8  # pixels of a picture
DRAWN = "bold green"  # of words that were drawn just now


class Screen(Progress):
    """A line that says how far a run is, and pictures or texts above it."""

    def __init__(self, console: Console) -> None:
        self.seen: Sequence[Image.Image | Text] = ()
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            auto_refresh=False,
            expand=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def side(self, count: int) -> int:
        """The largest pictures of which so many fit beside each other, in pixels; 0 where there is no room."""
        columns, lines = self.console.size
        side = min(MAX_SIDE, columns // count - 2, 2 * (lines - 4)) // 2 * 2
        return side if side >= MIN_SIDE and self.console.color_system and not self.console.no_color else 0

    def get_renderables(self) -> Iterable[RenderableType]:
        pictures = [each for each in self.seen if isinstance(each, Image.Image)]
        if pictures and (side := self.side(len(pictures))):
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_row(*(half_blocks(picture, side) for picture in pictures))
            yield row
        for text in self.seen:
            if isinstance(text, Text):
                yield window(text, self.console, (self.console.height - 2) // len(self.seen) - 1)
                yield ""
        yield self.make_tasks_table(self.tasks)


def half_blocks(picture: Image.Image, side: int) -> Text:
    """A picture as text: each character is two pixels, one above the other."""
    pixels = np.array(picture.convert("RGB").resize((side, side), Image.Resampling.BOX)).tolist()
    text = Text(no_wrap=True)
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        for top, bottom in zip(upper, lower, strict=True):
            text.append("▀", colours(*top, *bottom))
        text.append("\n")
    text.right_crop()
    return text


@lru_cache(maxsize=65536)
def colours(*levels: int) -> Style:
    """Red, green and blue of the upper pixel, then of the lower one."""
    top, bottom = (f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in (levels[:3], levels[3:]))
    return Style(color=top, bgcolor=bottom)


def window(text: Text, console: Console, lines: int) -> Text:
    """So many lines of a text, with what was drawn just now among them."""
    wrapped = text.wrap(console, console.width)
    drawn = [place for place, line in enumerate(wrapped) if any(span.style == DRAWN for span in line.spans)]
    first = max(0, min((drawn[-1] if drawn else 0) - lines // 2, len(wrapped) - lines))
    return Text("\n").join(wrapped[first : first + max(1, lines)])


class Preview:
    """Shows the images of a run as they fill in. It only looks: images are the same with and without it.

    It is a `recap.runs.draw.StepObserver`. Showing takes a share of the run's time and no more; what is not decoded
    yet is grey. `names` say what each image shows.
    """

    def __init__(
        self, pipe: Pipeline, screen: Screen, title: str, num: int, names: Sequence[str] | None = None
    ) -> None:
        self.pipe, self.screen, self.title, self.num, self.names = pipe, screen, title, num, names
        self.budget = DisplayBudget()
        self.memory = True  # whether there is enough of it for pictures
        self.bar = screen.add_task(printable(title), total=None)

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        """Show images after a sub-step, if there is time."""
        if step == len(works[0].schedule.steps) or not self.budget.due():
            return  # the finished picture is about to come, and costs nothing
        shown = min(MAX_SHOWN, len(works))
        frame = frame_of(self.pipe, works[0].schedule, step, [canvas], [shown])
        frame.finite.cpu()  # what the device has still to compute is the run's time
        with self.budget.showing():
            self.show(works, step, self.look(frame, works[:shown]), frame.position, frame.decoded)

    def look(self, frame: Frame, works: Sequence[Work]) -> Sequence[Image.Image | Text]:
        """Pictures of images under way, or none for want of room or memory: the run needs it more."""
        if not self.memory or not self.screen.side(len(works)):
            return []
        masked = frame.masked | ~frame.finite.unsqueeze(1)  # what is NaN or inf has no picture
        try:
            return self.pipe.preview(frame.tokens, masked)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self.memory = False
        release(self.pipe.device)
        return []

    def done(self, results: Sequence[Done | Failed]) -> None:
        """Show finished images."""
        works = [result.work for result in results]
        if self.budget.due() or works[-1].index + 1 == self.num:
            with self.budget.showing():
                schedule = works[0].schedule
                whole = schedule.known + schedule.tokens
                self.show(works, len(schedule.steps), self.ends(results[:MAX_SHOWN]), "finished", whole)

    def ends(self, results: Sequence[Done | Failed]) -> Sequence[Image.Image | Text]:
        """What is shown of finished ones."""
        return [image for result in results if (image := getattr(result, "image", None))]

    def clear(self) -> None:
        """Leave nothing of the images or texts in the terminal, because they are about to be printed."""
        self.screen.seen = ()
        self.screen.refresh()

    def counted(self, work: Work, decoded: int) -> str:
        """How many of its tokens are there."""
        return f"decoded {decoded}/{work.schedule.known + work.schedule.tokens}"

    def show(
        self, works: Sequence[Work], step: int, seen: Sequence[Image.Image | Text], position: str, decoded: int
    ) -> None:
        first, last, steps = works[0].index, works[-1].index, len(works[0].schedule.steps)
        noun = works[0].noun
        which = f"{noun} {first + 1}" if first == last else f"{noun}s {first + 1} to {last + 1}"
        name = [printable(self.names[first])] if self.names and first == last else []
        said = [f"{which} of {self.num}", position, self.counted(works[0], decoded)]
        self.screen.seen = seen
        done = first * steps + len(works) * step
        text = printable("  ".join([*said, *name, self.title]))
        self.screen.update(self.bar, description=text, total=self.num * steps, completed=done, refresh=True)
