"""A run in a terminal, drawn by rich: pictures of half blocks, a timeline of its evaluations, a line of text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from recap.core.canvas import Canvas
from recap.core.memory import is_out_of_memory, release
from recap.core.schedule import Schedule
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget
from recap.view.painting import COLOURS, Layout, finished, known_part, unfinished

if TYPE_CHECKING:
    from recap.pipelines import Pipeline
    from recap.runs.works import Done, Failed, Work

MAX_SHOWN = 4  # pictures of one batch; more would be too small to be looked at
MAX_KEPT = 12  # finished pictures that are remembered
GUESSES = {"picture": 0.1, "states": 0.02}  # seconds, until they are measured
LEVELS = "▁▂▃▄▅▆▇█"


class Preview:
    """Shows the images of a run as they fill in. It only looks: images are the same with and without it.

    It is a `recap.runs.draw.StepObserver`. Pictures take the tokenizer some time, and are left out while they would
    take more than a share of the run; what was decoded since the last one is grey. `names` say what each image shows,
    `before` is the picture that a run begins with.
    """

    def __init__(
        self,
        pipe: Pipeline,
        live: Live,
        title: str,
        num: int,
        *,
        names: Sequence[str] | None = None,
        before: Image.Image | None = None,
        processes: int = 1,
    ) -> None:
        self.pipe, self.live, self.title, self.num = pipe, live, title, num
        self.names, self.before, self.processes = names, before, processes
        self.budget = DisplayBudget(GUESSES)
        self.colours = live.console.color_system is not None and not live.console.no_color
        self.memory = True  # whether there is enough of it for pictures
        self.finished: list[Image.Image | None] = []
        self._indices: list[int] = []  # of the images under way
        self._seen: list[Image.Image | None] = []  # the latest pictures of the first of them
        self._drawn = 0  # images of this process
        self._began = time.perf_counter()

    @property
    def spent(self) -> float:
        """Seconds that showing took so far, which are none of the run's."""
        return self.budget.spent

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        """Show images after a sub-step, if there is time."""
        schedule, indices = works[0].schedule, [work.index for work in works]
        if indices != self._indices:
            self._indices, self._seen = indices, []
        if step == len(schedule.steps):
            return  # the finished picture is about to come, and costs nothing
        shown = min(MAX_SHOWN, len(works))
        layout = self._layout(shown)
        picture = self.memory and layout.tile > 0 and self.budget.due("picture")
        if not picture and not self.budget.due("states"):
            return
        frame = frame_of(self.pipe, schedule, step, [canvas], [shown])
        states = frame.states.cpu().numpy()  # (b, N); what the device has still to compute is the run's time
        with self.budget.showing("picture" if picture else "states"):
            if picture:
                self._look(frame)
            if not self._seen:
                self._seen = [None if self.before is None else known_part(self.before, own) for own in states]
            tiles = [
                unfinished(seen, own, frame.evaluation, layout.tile)
                for seen, own in zip(self._seen, states, strict=True)
                if layout.tile
            ]
            self._show(layout, tiles, schedule, step, frame.decoded, Text(frame.position, _ink(frame.evaluation)))

    def done(self, results: Sequence[Done | Failed]) -> None:
        """Show finished images; they are among the earlier ones when the next are begun."""
        works = [result.work for result in results]
        self._indices, schedule = [work.index for work in works], works[0].schedule
        self._drawn += len(works)
        shown = [_image(result) for result in results[:MAX_SHOWN]]
        if self.budget.affords("states") or self._indices[-1] + 1 == self.num:
            with self.budget.showing("states"):
                layout = self._layout(len(shown))
                tiles = [finished(image, layout.tile) for image in shown if layout.tile]
                steps = len(schedule.steps)
                self._show(layout, tiles, schedule, steps, schedule.known + schedule.tokens, Text("finished"))
        self.finished = [*self.finished, *shown][-MAX_KEPT:]
        self._indices = []

    def _look(self, frame: Frame) -> None:
        """Take pictures of the first images of a batch."""
        masked = frame.masked | ~frame.finite.unsqueeze(1)  # what is NaN or inf has no picture
        try:
            self._seen = list(self.pipe.preview(frame.tokens, masked))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.memory = False  # the run needs it more
        if not self.memory:  # out here, where nothing holds on to the tensors of what failed
            release(self.pipe.device)

    def _layout(self, images: int) -> Layout:
        console = self.live.console
        return Layout.of(*console.size, images, len(self.finished)) if self.colours else Layout()

    def _show(
        self,
        layout: Layout,
        tiles: Sequence[Image.Image],
        schedule: Schedule,
        step: int,
        decoded: int,
        position: Text,
    ) -> None:
        width = self.live.console.width - 1
        parts: list[RenderableType] = []
        if tiles:
            scene = layout.scene(tiles, self.finished)
            parts.append(HalfBlocks(scene))
            width = min(width, max(scene.width, len(schedule.steps)))
        parts.append(timeline(schedule, step, width))
        said: list[str | Text] = [
            self._which(len(tiles)),
            position,
            f"decoded {decoded}/{schedule.known + schedule.tokens}",
        ]
        said += [duration(time.perf_counter() - self._began), self._left(step / len(schedule.steps))]
        said += [self._name(), self.title]
        parts.append(Text("  ", no_wrap=True, overflow="ellipsis").join(Text.assemble(part) for part in said if part))
        self.live.update(Group(*parts), refresh=True)

    def _which(self, shown: int) -> str:
        """Which images these are."""
        first, last = self._indices[0] + 1, self._indices[-1] + 1
        if first == last:
            return f"image {first} of {self.num}"
        rest = f", {shown} shown" if 0 < shown < len(self._indices) else ""
        return f"images {first} to {last} of {self.num}{rest}"

    def _name(self) -> str:
        return self.names[self._indices[0]] if self.names is not None and len(self._indices) == 1 else ""

    def _left(self, share: float) -> str:
        """How much longer the run will take, by what it took so far; `share` is done of the images under way."""
        count = len(self._indices)
        drawn = self._drawn + (count * share if share < 1 else 0)
        todo = (self.num - 1 - self._indices[-1]) / self.processes + count * (1 - share)
        if todo <= 0:
            return ""
        return f"about {duration((time.perf_counter() - self._began) / drawn * todo)} left"


def _ink(evaluation: str) -> Style:
    return Style(color=Color.from_rgb(*COLOURS[evaluation]))


def _image(result: Any) -> Image.Image | None:
    """The picture of a finished image; one that failed has none."""
    return None if getattr(result, "pixels", None) is None else result.image


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


@dataclass(frozen=True, slots=True)
class HalfBlocks:
    """A picture (RGBA) for rich; what is transparent has the terminal's own background."""

    picture: Image.Image

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pixels = np.array(self.picture.convert("RGBA"))
        pixels = np.pad(pixels, ((0, len(pixels) % 2), (0, 0), (0, 0)))
        pixels[pixels[..., 3] == 0] = 0
        codes = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1, 1 << 24], np.uint32)  # (h, w)
        for upper, lower in zip(codes[::2].tolist(), codes[1::2].tolist(), strict=True):
            for top, bottom in zip(upper, lower, strict=True):
                yield cell(top, bottom)
            yield Segment.line()


@lru_cache(maxsize=65536)
def cell(top: int, bottom: int) -> Segment:
    """Two pixels, each as opacity, red, green and blue in the bytes of a number."""
    upper, lower = (
        Color.from_rgb(code >> 16 & 255, code >> 8 & 255, code & 255) if code else None for code in (top, bottom)
    )
    if upper is None:
        return Segment(" ") if lower is None else Segment("▄", Style(color=lower))
    return Segment("▀", Style(color=upper, bgcolor=lower))


def timeline(schedule: Schedule, step: int, width: int) -> Text:
    """The evaluations of a run in at most `width` characters, full ones high and local ones low; `step` are done.

    Where there are more of them than characters, one stands for several that follow each other; where there are
    few, each takes several.
    """
    kinds = [index == 0 for group in schedule for index in range(len(group.steps))]
    count = len(kinds)
    size, wide = min(count, width), max(1, width // count)
    line = Text(no_wrap=True, overflow="crop")
    for column in range(size):
        first, last = column * count // size, (column + 1) * count // size
        share = sum(kinds[first:last]) / (last - first)
        mixed = (share * full + (1 - share) * local for full, local in zip(*COLOURS.values(), strict=True))
        done = step > first
        style = Style(color=Color.from_rgb(*mixed)) if done else Style(dim=True)
        line.append(wide * (LEVELS[round(1 + 4 * share)] if done else "·"), style)
    return line
