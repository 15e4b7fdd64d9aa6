"""Lanes that run in fair time: whichever clock is behind goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PIL import Image

from recap.clock import now
from recap.distributed.drawing import alone, png
from recap.evaluation.error import ErrorLog, measured
from recap.frames import Frame
from recap.pipeline import Pipeline
from recap.serving.limits import Refused
from recap.serving.work import Work, asked_of, finished
from recap.studio.jobs import Lane
from recap.studio.limits import BATCH
from recap.studio.previews import Previews, webp

Event = dict[str, Any]  # pictures in it are bytes


class Pane:
    """A lane under way: its events sub-step by sub-step, and a clock of its own.

    The clock counts evaluations, draws and the final decoding, but neither previews, nor what drift takes, nor the
    other lane.
    """

    def __init__(
        self, lane: Lane, pipe: Pipeline, *, drift: bool = False, watched: Callable[[], bool] = lambda: True
    ) -> None:
        """Pictures of what is under way are made while it is `watched`."""
        self.lane, self.pipe, self.drift = lane, pipe, drift and lane.schedule.local > 0
        self.watched = watched
        self.clock = 0.0
        self.previews = Previews()
        self.pictures: list[Image.Image] = []
        self.took = [0.0] * len(lane.kinds)  # seconds of each sub-step, all images together
        self.decoding = 0.0
        self.steps = self._steps()

    def _steps(self) -> Iterator[list[Event]]:
        """The events of every sub-step; images are drawn as `recap sample` and `recap edit` do it on this device."""
        works = self.lane.works
        size = 1 if alone(self.pipe) else len(works)
        for first in range(0, len(works), size):
            yield from self._lot(works[first : first + size])

    def _lot(self, works: Sequence[Work]) -> Iterator[list[Event]]:
        """Images that are drawn together."""
        filled = 1 if alone(self.pipe) or works[0].start is not None else BATCH
        rows = [*works, *[works[-1]] * (filled - len(works))]
        pipe, log = measured(self.pipe, self.lane.schedule) if self.drift else (self.pipe, None)
        before = self.clock
        for frame in pipe.stream(**asked_of(self.pipe, rows)):
            clock = before + frame.seconds - (log.seconds if log is not None else 0.0)
            self.took[frame.step - 1] += clock - self.clock
            self.clock = clock
            check_sound(works, frame)
            errors = None if log is None or frame.evaluation == "full" else latest(log, frame)
            if frame.last:
                yield self._finish(works, frame, errors)
            else:
                unseen: list[bytes | None] = [None] * len(works)
                pictures = self.previews.of(frame, len(works), self.clock) if self.watched() else unseen
                yield self._frames(works, frame, pictures, errors)

    def _frames(
        self, works: Sequence[Work], frame: Frame, pictures: Sequence[bytes | None], errors: Sequence[float] | None
    ) -> list[Event]:
        cells = frame.cells.tolist()
        return [
            {
                "event": "frame",
                "pane": self.lane.name,
                "image": work.index,
                "step": frame.step,
                "steps": frame.steps,
                "group": frame.group,
                "evaluation": frame.evaluation,
                "decoded": frame.decoded,
                "seconds": self.clock,
                "cells": "".join(map(str, cells[row])),
                "picture": pictures[row],
                "drift": None if errors is None else errors[row],
            }
            for row, work in enumerate(works)
        ]

    def _finish(self, works: Sequence[Work], frame: Frame, errors: Sequence[float] | None) -> list[Event]:
        """The last frame, and the finished images."""
        at_last, began = self.clock, now(self.pipe.device)
        pixels = self.pipe.decode(frame.tokens, "pt")[: len(works)]  # (B, 3, H, W)
        sound = pixels.isfinite().flatten(1).all(dim=1).tolist()
        results = [finished(work, pixels[row : row + 1], sound[row]) for row, work in enumerate(works)]
        spent = now(self.pipe.device) - began
        self.decoding += spent
        pictures = []
        for result in results:
            if isinstance(result, Refused):
                raise result
            pictures.append(result)
        self.pictures += pictures
        frames = self._frames(works, frame, [webp(picture) for picture in pictures], errors)
        self.clock = at_last + spent
        images = [
            {
                "event": "image",
                "pane": self.lane.name,
                "image": work.index,
                "seconds": self.clock,
                "picture": png(picture),
            }
            for work, picture in zip(works, pictures, strict=True)
        ]
        return [*frames, *images]


def race(panes: Sequence[Pane]) -> Iterator[Event]:
    """The events of all panes until the last has finished; the one whose clock is behind goes on."""
    running = list(panes)
    while running:
        pane = min(running, key=lambda pane: pane.clock)
        events = next(pane.steps, None)
        if events is None:
            running.remove(pane)
        else:
            yield from events


def latest(log: ErrorLog, frame: Frame) -> list[float]:
    """The error of the local evaluation that a frame came from, for each image."""
    before = frame.decoded - frame.schedule.steps[frame.step - 1].tokens
    errors: list[float] = log.errors[before][-1].tolist()
    return errors


def check_sound(works: Sequence[Work], frame: Frame) -> None:
    """Stop at the first value that is no number."""
    for work, sound in zip(works, frame.sound.tolist()[: len(works)], strict=True):
        if not sound:
            raise Refused(
                422,
                "unsound",
                f"image {work.index} of seed {work.seed} ran into values that are no numbers at sub-step "
                f"{frame.step} of {frame.steps}; use a guidance near 1",
            )
