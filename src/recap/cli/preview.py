"""A run drawn in the terminal while it goes on."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import numpy as np
from PIL import Image

from recap.cli.scene import (
    SHOWN,
    Layout,
    coloured,
    duration,
    layout_of,
    scene,
    span,
    status,
)
from recap.cli.screen import Screen
from recap.clock import now
from recap.core.canvas import Canvas
from recap.core.schedule import Schedule
from recap.distributed.drawing import Audience
from recap.distributed.stopping import stoppable
from recap.frames import Cell, Frame, frame_of
from recap.memory import is_out_of_memory, release
from recap.pace import Pace
from recap.painting import finished, unfinished
from recap.pipeline import Pipeline
from recap.terminal import Look, Sheet, lines_of, look_of, timeline

GUESSES = {"picture": 0.1, "cells": 0.005}  # seconds, until they are measured
KEPT = 12  # finished pictures that are remembered
Opened = Callable[[str, Schedule], Audience | None]


def add_preview(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--preview", action="store_true", help="draw the pictures in the terminal as they are decoded"
    )


@contextmanager
def previews(
    wanted: bool,
    pipe: Pipeline,
    num: int,
    *,
    names: Sequence[str] | None = None,
    before: Image.Image | None = None,
    processes: int = 1,
) -> Iterator[Opened]:
    """Something that opens a preview of a run by its title and schedule, or None where nothing is to be drawn.

    `names` say what each image shows, `before` is what a run begins with.
    """
    file = terminal() if wanted else None
    if wanted and file is None:
        print("--preview needs a terminal whose cursor can be moved; going on without it", file=sys.stderr)
    if file is None:
        yield lambda title, schedule: None
        return
    look = look_of(os.environ, file.encoding)
    with stoppable(), Screen(file) as screen:
        yield lambda title, schedule: Preview(
            pipe, screen, look, title, schedule, num, names=names, before=before, processes=processes
        )


def terminal() -> TextIO | None:
    """The stream to draw on: the one for messages if it is a terminal, or else the one for output."""
    if os.environ.get("TERM", "") in ("", "dumb", "unknown") and os.name != "nt":
        return None
    return next((file for file in (sys.stderr, sys.stdout) if file is not None and file.isatty()), None)


class Preview:
    """Shows the images of a run as they fill in. It only looks: images are the same with and without it.

    Pictures take the tokenizer some time, and are left out while they would take more than a share of the run; what
    was decoded since then is shown in plain colours.
    """

    def __init__(
        self,
        pipe: Pipeline,
        screen: Screen,
        look: Look,
        title: str,
        schedule: Schedule,
        num: int,
        *,
        names: Sequence[str] | None = None,
        before: Image.Image | None = None,
        processes: int = 1,
    ) -> None:
        self.pipe, self.screen, self.look = pipe, screen, look
        self.title, self.schedule, self.num, self.names, self.processes = title, schedule, num, names, processes
        self.before = before
        self.pace = Pace(GUESSES)
        self.numbers: list[int] = []
        self.pictures: list[Image.Image | None] = []
        self.pictured = np.zeros((0, 0), bool)  # (B, N) what the pictures hold
        self.finished: list[Image.Image] = []
        self._drawn = 0  # images of this process
        self._began = self._mark = time.perf_counter()
        self._shown = 0.0  # seconds spent on showing when the clock of these images began
        self._whole = True  # whether there is memory for pictures
        screen.settle()

    def step(self, numbers: Sequence[int], step: int, canvas: Canvas) -> None:
        """Show a run after a sub-step, if there is time."""
        if list(numbers) != self.numbers:
            self._begin(list(numbers))
        if step == len(self.schedule.steps):
            return  # the finished picture is about to come, and costs nothing
        picture = self._whole and self.pace.due("picture")
        if not picture and not self.pace.due("cells"):
            return
        seconds = now(self.pipe.device) - self._mark - (self.pace.spent - self._shown)
        with self.pace.showing("picture" if picture else "cells"):
            frame = frame_of(self.pipe, canvas, self.schedule, step, seconds)
            cells = frame.cells[: min(SHOWN, len(numbers))].cpu().numpy()  # (b, N)
            if not self.pictures:
                self.pictures = [self.before] * len(cells)
                self.pictured = np.full(cells.shape, self.before is not None) & (cells == Cell.KNOWN)
            if picture:
                self._look(frame, len(cells))
            self._draw(
                lambda layout: [
                    unfinished(shown, own, seen, frame.evaluation, layout.tile)
                    for shown, own, seen in zip(self.pictures, cells, self.pictured, strict=True)
                ],
                step,
                [(frame.position, 0), (f"decoded {frame.decoded}/{cells.shape[1]}", 2)],
                seconds,
                frame.evaluation,
            )

    def done(self, numbers: Sequence[int], pictures: Sequence[Image.Image]) -> None:
        """Show finished images; they count among the earlier ones when the next are begun."""
        seconds = time.perf_counter() - self._mark - (self.pace.spent - self._shown)
        self._drawn += len(numbers)
        shown = list(pictures[:SHOWN])
        if shown and (self.pace.affords("finished") or self.numbers[-1] + 1 == self.num):
            with self.pace.showing("finished"):
                self._draw(
                    lambda layout: [finished(picture, layout.tile) for picture in shown],
                    len(self.schedule.steps),
                    [(f"decoded {self.pipe.model.num_tokens}/{self.pipe.model.num_tokens}", 0)],
                    seconds,
                )
        self.finished = [*self.finished, *shown][-KEPT:]
        self.numbers = []
        self._mark, self._shown = time.perf_counter(), self.pace.spent

    def _begin(self, numbers: list[int]) -> None:
        self.numbers, self.pictures = numbers, []

    def _look(self, frame: Frame, count: int) -> None:
        """Take pictures of the first images of a batch."""
        masked = (frame.masked | ~frame.sound.unsqueeze(1))[:count]  # what is no number has no picture
        try:
            self.pictures = list(self.pipe.preview(frame.tokens[:count], masked))
            self.pictured = ~masked.cpu().numpy()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._whole = False  # the run needs it more
            release(self.pipe.device)

    def _draw(
        self,
        tiles: Callable[[Layout], list[Sheet]],
        step: int,
        parts: Sequence[tuple[str, int]],
        seconds: float,
        evaluation: str | None = None,
    ) -> None:
        columns, lines = self.screen.size
        count = min(SHOWN, len(self.numbers))
        layout = layout_of(columns, lines, count, max(0, min(self.num, KEPT + count) - count))
        sheet = scene(tiles(layout), self.finished, layout) if layout.tile else None
        text = [] if sheet is None else lines_of(sheet, self.look)
        width = columns - 1
        if layout.timeline:
            across = min(width, max(span(layout.tile, layout.across), len(self.schedule.steps)))
            text.append(timeline(self.schedule, step, across, self.look))
        said = [(self.title, 6), *self._which(), *parts, (duration(seconds), 3), (self._left(step), 4)]
        line = status(said, width)
        if evaluation is not None:
            line = line.replace(parts[0][0], coloured(parts[0][0], evaluation, self.look), 1)
        self.screen.draw([*text, line])

    def _which(self) -> list[tuple[str, int]]:
        """Which images these are, and what they show."""
        first, last = self.numbers[0] + 1, self.numbers[-1] + 1
        name = self.names[self.numbers[0]] if self.names is not None and first == last else ""
        which = f"image {first} of {self.num}" if first == last else f"images {first} to {last} of {self.num}"
        return [(which, 1), (name, 5)]

    def _left(self, step: int) -> str:
        """How much longer the run will take, by what it took so far."""
        steps = len(self.schedule.steps)
        share = len(self.numbers) * step / steps
        todo = (self.num - 1 - self.numbers[-1]) / self.processes + len(self.numbers) * (1 - step / steps)
        drawn = self._drawn + (share if step < steps else 0)
        if drawn <= 0 or todo <= 0 or self.num == len(self.numbers):
            return ""
        return f"about {duration((time.perf_counter() - self._began) / drawn * todo)} left"
