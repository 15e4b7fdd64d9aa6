"""Plain decoding and reuse beside each other in fair time: whichever clock is behind goes on."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from recap.bench.clock import synchronized_time
from recap.core.schedule import Schedule
from recap.pipelines import Pipeline
from recap.runs.draw import begin, finish, images_together
from recap.runs.works import Failed, Work
from recap.server import record
from recap.server.guard import ApiError
from recap.server.requests import Asked, Pending
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget

Event = dict[str, Any]  # pictures in it are bytes
SHARE = 1 / 3  # of all time that pictures of what is under way may take: half as much as the run itself
QUALITY = 80  # of these pictures, which are WebP
BACKLOG = 64  # events that a visitor may be behind before it is sent no more of them


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of drawing the images of a comparison: its name, and the images."""

    name: str  # "plain" or "reused"
    works: Sequence[Work]

    @property
    def schedule(self) -> Schedule:
        return self.works[0].schedule

    def about(self) -> dict[str, Any]:
        """Its sub-steps, with the evaluation that each draws from."""
        kinds = [kind for group in self.schedule for kind in ("full", *["local"] * group.local)]
        return {"evaluations": str(self.schedule), "kinds": kinds, "tokens": list(self.schedule.sizes)}


class Comparison(Pending):
    """The images of one request in one or two variants, and the events that its visitor has not been sent yet."""

    def __init__(self, asked: Asked, *, both: bool = True, drift: bool = False) -> None:
        """`both` draws without reuse too; `drift` holds every local evaluation against an exact one."""
        super().__init__(asked)
        reuse = asked.works[0].schedule.local > 0
        self.variants = [Variant("reused" if reuse else "plain", asked.works)]
        if reuse and both:
            self.variants.insert(0, Variant("plain", asked.plain()))
        self.id, self.drift = secrets.token_urlsafe(9), drift
        self._position = 0
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def watched(self) -> bool:
        """Whether the visitor reads about as fast as the run goes."""
        return self._events.qsize() <= BACKLOG

    def put(self, event: Event) -> None:
        """Send an event; the last one ends it all."""
        if not self.done.done():
            self._events.put_nowait(event)
            if event["event"] == "done":
                self.done.set_result(None)
                self._events.put_nowait(None)

    def moved(self, position: int) -> None:
        if self._position != position:
            self._position = position
            self.put({"event": "queued", "position": position})

    def fail(self, refused: ApiError) -> None:
        self.put({"event": "error", "code": refused.code, "message": refused.detail})
        if not self.done.done():
            self._events.put_nowait(None)
        super().fail(refused)

    async def events(self) -> AsyncIterator[Event]:
        """What there is to tell, until the run is over."""
        while (event := await self._events.get()) is not None:
            yield event

    def started(self) -> Event:
        """What is known before the first sub-step."""
        asked = self.asked
        return {
            "event": "started",
            "run": self.id,
            "model": asked.model,
            "images": len(asked.works),
            "labels": [
                None if work.label is None else {"label": work.label, "name": asked.name_of(work)}
                for work in asked.works
            ],
            "seed": asked.request.seed,
            "image_size": asked.pipe.side,
            "schedule": asked.evaluations.model_dump(),
            "variants": [{"variant": variant.name, **variant.about()} for variant in self.variants],
        }


def compare(request: Comparison, clock: Callable[[], float] | None = None) -> Iterator[Event]:
    """Draw all variants and tell of every sub-step; the last event has the images and their record as an archive."""
    clock = clock or partial(synchronized_time, request.asked.pipe.device)
    budget = DisplayBudget(share=SHARE, clock=clock)
    options: dict[str, Any] = {"watched": request.watched, "drift": request.drift}
    runs = [VariantRun(variant, request.asked.pipe, budget, **options) for variant in request.variants]
    yield request.started()
    yield from fair(runs)
    seconds = {run.variant.name: run.seconds for run in runs}
    done = {
        "run": request.id,
        "seconds": seconds,
        "speedup": seconds["plain"] / seconds["reused"] if len(runs) > 1 else None,
        "difference": difference(*(run.pictures for run in runs)) if len(runs) > 1 else None,
    }
    about = done | record.about(request.asked, {run.variant.name: run.variant.about() for run in runs})
    files = {"run.json": json.dumps(about, indent=2).encode() + b"\n", **request.asked.files}
    for run in runs:
        files |= {f"{run.variant.name}/{place:06d}.png": record.png(each) for place, each in enumerate(run.pictures)}
    yield {"event": "done", **done, "record": about, "archive": record.archive(files)}


class VariantRun:
    """A variant under way: its events sub-step by sub-step, and a clock of its own.

    The clock counts evaluations, draws and the final decoding, but neither pictures of what is under way, nor what
    drift takes, nor the other variant.
    """

    def __init__(
        self,
        variant: Variant,
        pipe: Pipeline,
        budget: DisplayBudget,
        *,
        watched: Callable[[], bool] = lambda: True,
        drift: bool = False,
    ) -> None:
        """`budget` is the time for pictures while they are `watched`, and has the clock."""
        self.variant, self.pipe, self.budget, self.watched = variant, pipe, budget, watched
        self.drift = drift and variant.schedule.local > 0
        self.seconds = 0.0
        self.pictures: list[Image.Image] = []
        self.steps = self._steps()

    def _steps(self) -> Iterator[list[Event]]:
        """The events of every sub-step; images are drawn in the batches of all other runs on this device."""
        size, works = images_together(self.pipe), self.variant.works
        for first in range(0, len(works), size):
            yield from self._batch(works[first : first + size], first, size)

    def _batch(self, works: Sequence[Work], first: int, size: int) -> Iterator[list[Event]]:
        """Images that are drawn together, the one at place `first` and those after it."""
        schedule, pipe, log = self.variant.schedule, self.pipe, None
        if self.drift:
            from recap.evaluation.error import measured  # brings much that nothing else here needs

            pipe, log = measured(pipe, schedule)
        canvases = begin(pipe, works, size)
        for step, evaluated in enumerate(schedule.steps, start=1):
            apart = 0.0 if log is None else log.seconds
            with self._timed():
                canvas = next(canvases)
            self.seconds -= 0.0 if log is None else log.seconds - apart
            frame = frame_of(self.pipe, schedule, step, [canvas], [len(works)])
            drift: list[float | None] = [None] * len(works)
            if log is not None and frame.evaluation == "local":
                drift = log.errors[frame.decoded - evaluated.tokens][-1].tolist()
            yield [
                {
                    "event": "frame",
                    "variant": self.variant.name,
                    "image": first + row,
                    "step": step,
                    "steps": frame.steps,
                    "group": frame.group,
                    "evaluation": frame.evaluation,
                    "decoded": frame.decoded,
                    "seconds": self.seconds,
                    "states": "".join(map(str, states)),
                    "picture": picture,
                    "drift": drift[row],
                }
                for row, (states, picture) in enumerate(
                    zip(frame.states.tolist(), self._previews(frame), strict=True)
                )
            ]
        with self._timed():
            results = finish(self.pipe, works, canvas.raster(), canvas.finite)
            pictures = [result.image for result in results if not isinstance(result, Failed)]
        for result in results:
            if isinstance(result, Failed):
                raise ApiError(422, "non_finite", str(result))
        self.pictures += pictures
        about = {"event": "image", "variant": self.variant.name, "seconds": self.seconds}
        yield [about | {"image": place, "picture": record.png(each)} for place, each in enumerate(pictures, first)]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = self.budget.clock()
        yield
        self.seconds += self.budget.clock() - began

    def _previews(self, frame: Frame) -> Sequence[bytes | None]:
        """A small file for each image of a frame, or nothing where finished ones follow or it would take too long."""
        if frame.last or not (frame.finite.all() and self.watched() and self.budget.due()):
            return [None] * len(frame.tokens)
        with self.budget.showing():
            return [webp(picture) for picture in frame.images]


def fair(runs: Sequence[VariantRun]) -> Iterator[Event]:
    """The events of all runs until the last has finished; the one whose clock is behind goes on."""
    running = list(runs)
    while running:
        run = min(running, key=lambda run: run.seconds)
        events = next(run.steps, None)
        if events is None:
            running.remove(run)
        else:
            yield from events


def difference(plain: Sequence[Image.Image], reused: Sequence[Image.Image]) -> list[float]:
    """Mean absolute difference of the pixels of two variants, image by image."""
    pairs = zip(plain, reused, strict=True)
    return [float(np.abs(np.asarray(one, np.float64) - np.asarray(other)).mean()) for one, other in pairs]


def webp(picture: Image.Image) -> bytes:
    """A small file of a picture, made quickly."""
    picture.save(file := io.BytesIO(), "WEBP", quality=QUALITY, method=0)
    return file.getvalue()
