"""Plain decoding and reuse beside each other, image by image: of a pair, whichever clock is behind goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from recap.bench.pairs import Pairs
from recap.bench.timing import synchronized_time
from recap.pipelines import Pipeline
from recap.runs.draw import begin, fewest_together, finish
from recap.runs.record import versions
from recap.runs.works import Failed, Work
from recap.server import record
from recap.server.guard import ApiError
from recap.server.requests import CheckedRequest, PendingRequest
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget

Event = dict[str, Any]  # pictures in it are bytes
SHARE = 1 / 3  # of all time that pictures of what is under way may take: half as much as the run itself
QUALITY = 80  # of these pictures, which are WebP
LAST = ("done", "error")
BACKLOG = 64  # events that a visitor may be behind before it is sent no more of them


class Comparison(PendingRequest):
    """The images of one request in one or two variants, and the events that its visitor has not been sent yet."""

    def __init__(self, asked: CheckedRequest, *, both: bool = True) -> None:
        super().__init__(asked)
        self.both = both and asked.works[0].schedule.local > 0
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def watched(self) -> bool:
        """Whether the visitor reads about as fast as the run goes."""
        return self._events.qsize() <= BACKLOG

    def tell(self, event: Event) -> None:
        """Send an event; the last one ends it all."""
        if not self.done.done():
            self._events.put_nowait(event)
            if event["event"] in LAST:
                self.done.set_result(None)
            if event["event"] == "done":
                self.finished = dict.fromkeys(self.asked.works)

    def moved(self, position: int) -> None:
        self.tell({"event": "queued", "position": position})

    def fail(self, refused: ApiError) -> None:
        self.tell({"event": "error", "code": refused.code, "message": refused.detail})

    async def lines(self) -> AsyncIterator[bytes]:
        """All events as JSON in ASCII, one a line, their pictures as base64 text."""
        event: Event = {"event": None}
        while event["event"] not in LAST:
            event = await self._events.get()
            yield json.dumps(event, default=record.as_text, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def compare(request: Comparison) -> Iterator[Event]:
    """Draw all variants and tell of every sub-step; the last event has the images and their record as an archive."""
    asked = request.asked
    clock = partial(synchronized_time, asked.pipe.device)
    variants = {"reused" if asked.works[0].schedule.local else "plain": asked.works}
    if request.both:
        variants = {"plain": asked.plain(), **variants}
    pairs, budget = Pairs(clock, list(variants)), DisplayBudget(share=SHARE, clock=clock)
    runs = [VariantRun(name, works, asked.pipe, pairs, budget, request.watched) for name, works in variants.items()]
    started = {
        "model": asked.model,
        "images": len(asked.works),
        "labels": [
            None if work.label is None else {"label": work.label, "name": asked.name_of(work)} for work in asked.works
        ],
        "seed": asked.request.seed,
        "schedule": asked.evaluations.model_dump(),
        "variants": [{"variant": run.name, **run.about()} for run in runs],
    }
    yield {"event": "started", **started}
    yield from in_turn(runs, pairs)
    done = {
        "seconds": {name: pairs.seconds(name) for name in variants},
        "speedup": pairs.speedup.json() if len(runs) > 1 else None,
        "difference": difference(*(run.pictures for run in runs)) if len(runs) > 1 else None,
        "commands": {run.name: record.command(asked, run.name) for run in runs},
    }
    text = json.dumps(started | done | {"device": str(asked.pipe.device), "versions": versions()}, indent=2)
    files = {"run.json": text.encode() + b"\n", **asked.files}
    for run in runs:
        files |= {f"{run.name}/{place:06d}.png": record.encoded(each) for place, each in enumerate(run.pictures)}
    yield {"event": "done", **done, "archive": record.archive(files)}


class VariantRun:
    """One way of drawing the images, "plain" or "reused": its events sub-step by sub-step.

    What is timed are evaluations, draws and the final decoding, but not pictures of what is under way.
    """

    def __init__(
        self,
        name: str,
        works: Sequence[Work],
        pipe: Pipeline,
        pairs: Pairs,
        budget: DisplayBudget,
        watched: Callable[[], bool] = lambda: True,
    ) -> None:
        """`budget` is the time for pictures while they are `watched`."""
        self.name, self.works, self.pipe, self.pairs = name, works, pipe, pairs
        self.budget, self.watched = budget, watched
        self.schedule = works[0].schedule
        self.pictures: list[Image.Image] = []

    @property
    def seconds(self) -> float:
        """Its clock."""
        return self.pairs.seconds(self.name)

    def lots(self) -> Iterator[Iterator[list[Event]]]:
        """The events of the images that are drawn together, lot by lot."""
        size = fewest_together(self.pipe, self.schedule)  # the more pairs, the surer the ratio
        return (self._lot(self.works[at : at + size], at, size) for at in range(0, len(self.works), size))

    def about(self) -> dict[str, Any]:
        """Its sub-steps, with the evaluation that each draws from."""
        kinds = [kind for group in self.schedule for kind in ("full", *["local"] * group.local)]
        return {"evaluations": str(self.schedule), "kinds": kinds, "tokens": list(self.schedule.sizes)}

    def _lot(self, works: Sequence[Work], first: int, size: int) -> Iterator[list[Event]]:
        """Images that are drawn together, the one at place `first` and those after it."""
        canvases = begin(self.pipe, works, size)
        for step in range(1, len(self.schedule.steps) + 1):
            with self.pairs.timed(self.name):
                canvas = next(canvases)
            frame = frame_of(self.pipe, self.schedule, step, [canvas], [len(works)])
            yield [
                {
                    "event": "frame",
                    "variant": self.name,
                    "image": first + row,
                    "step": step,
                    "steps": frame.steps,
                    "group": frame.group,
                    "evaluation": frame.evaluation,
                    "decoded": frame.decoded,
                    "seconds": self.seconds,
                    "states": "".join(map(str, states)),
                    "picture": picture,
                }
                for row, (states, picture) in enumerate(
                    zip(frame.states.tolist(), self._previews(frame), strict=True)
                )
            ]
        with self.pairs.timed(self.name):
            results = finish(self.pipe, works, canvas.raster(), canvas.finite)
            pictures = [result.image for result in results if not isinstance(result, Failed)]
        for result in results:
            if isinstance(result, Failed):
                raise ApiError(422, "non_finite", str(result))
        self.pictures += pictures
        about = {"event": "image", "variant": self.name, "seconds": self.seconds}
        yield [
            about | {"image": place, "picture": record.encoded(each)} for place, each in enumerate(pictures, first)
        ]

    def _previews(self, frame: Frame) -> Sequence[bytes | None]:
        """A small file for each image of a frame, or nothing where finished ones follow or it would take too long."""
        if frame.last or not (frame.finite.all() and self.watched() and self.budget.due()):
            return [None] * len(frame.tokens)
        with self.budget.showing():
            return [record.encoded(each, "WEBP", quality=QUALITY, method=0) for each in frame.images]


def in_turn(runs: Sequence[VariantRun], pairs: Pairs) -> Iterator[Event]:
    """The events of all runs, pair by pair; within one the run whose clock is behind goes on."""
    for lots in zip(*(run.lots() for run in runs), strict=True):
        lot = {run.name: events for run, events in zip(runs, lots, strict=True)}
        racing = pairs.begin()
        while racing:
            name = min(racing, key=lambda name: pairs.spent[name][-1].wall)
            events = next(lot[name], None)
            if events is None:
                racing.remove(name)
            else:
                yield from events


def difference(plain: Sequence[Image.Image], reused: Sequence[Image.Image]) -> list[float]:
    """Mean absolute difference of the pixels of two variants, image by image."""
    pairs = zip(plain, reused, strict=True)
    return [float(np.abs(np.asarray(one, np.float64) - np.asarray(other)).mean()) for one, other in pairs]
