"""Plain decoding and reuse beside each other in fair time: whichever clock is behind goes on."""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from recap.bench.clock import synchronized_time
from recap.core.schedule import Schedule
from recap.pipelines import Pipeline
from recap.runs.draw import backoff_for, begin, finish
from recap.runs.works import Done, Failed, Work
from recap.server.files import Record, Upload, png
from recap.server.limits import ApiError
from recap.server.models import Asked, Entry
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget

if TYPE_CHECKING:
    from recap.evaluation.error import ErrorLog

Event = dict[str, Any]  # pictures in it are bytes
SHARE = 1 / 3  # of all time that pictures of what is under way may take: half as much as the run itself
QUALITY = 80  # of these pictures, which are WebP
BACKLOG = 64  # events that a visitor may be behind before it is sent no more of them


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of drawing the images of a comparison: its name, and the images."""

    name: str  # "plain" or "reused"
    works: tuple[Work, ...]

    @property
    def schedule(self) -> Schedule:
        return self.works[0].schedule

    @property
    def kinds(self) -> list[str]:
        """The evaluation that each sub-step draws from."""
        return [kind for group in self.schedule for kind in ("full", *["local"] * group.local)]

    def about(self) -> dict[str, Any]:
        """Its sub-steps."""
        return {"evaluations": str(self.schedule), "kinds": self.kinds, "tokens": list(self.schedule.sizes)}


class Comparison:
    """The images of one request in one or two variants, and the events that its visitor has not been sent yet."""

    def __init__(
        self,
        entry: Entry,
        asked: Asked,
        *,
        both: bool = True,
        drift: bool = False,
        labelled: bool = True,
        upload: Upload | None = None,
        keep: Callable[[Record], None] = lambda _: None,
    ) -> None:
        """`both` draws without reuse too; `labelled` says whether labels were named; `keep` takes the record."""
        reuse = asked.works[0].schedule.local > 0
        variants = [Variant("reused" if reuse else "plain", asked.works)]
        if reuse and both:
            variants.insert(0, Variant("plain", entry.plain(asked)))
        self.id = secrets.token_urlsafe(9)
        self.entry, self.asked, self.variants, self.drift = entry, asked, tuple(variants), drift
        self.labelled, self.upload, self.images = labelled, upload, len(asked.works)
        self.done: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self.record: Record | None = None
        self._keep, self._position = keep, 0
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def watched(self) -> bool:
        """Whether the visitor reads about as fast as the run goes."""
        return self._events.qsize() <= BACKLOG

    def tell(self, event: Event) -> None:
        """Send an event; the last one ends it all."""
        if self.done.done():
            return
        self._events.put_nowait(event)
        if event["event"] == "done" and self.record is not None:
            self._keep(self.record)
            self.done.set_result(self.record)
            self._events.put_nowait(None)

    def moved(self, position: int) -> None:
        if self._position != position:
            self._position = position
            self.tell({"event": "queued", "position": position})

    def fail(self, refused: ApiError) -> None:
        if not self.done.done():
            self.tell({"event": "error", "code": refused.code, "message": refused.message})
            self.done.set_exception(refused)
            self._events.put_nowait(None)

    async def events(self) -> Any:
        """What there is to tell, until the run is over."""
        while (event := await self._events.get()) is not None:
            yield event

    @property
    def labels(self) -> list[dict[str, int | str | None] | None]:
        """Label and name of each image's class."""
        names = self.entry.blank.class_names
        return [
            None if work.label is None else {"label": work.label, "name": names[work.label] if names else None}
            for work in self.asked.works
        ]

    def started(self) -> Event:
        """What is known before the first sub-step."""
        pipe = self.entry.blank
        return {
            "event": "started",
            "run": self.id,
            "model": self.entry.name,
            "images": self.images,
            "labels": self.labels,
            "seed": self.asked.works[0].seed,
            "image_size": pipe.side,
            "schedule": self.asked.evaluations,
            "variants": [{"variant": variant.name, **variant.about()} for variant in self.variants],
        }


def compare(request: Comparison, pipe: Pipeline, clock: Callable[[], float] | None = None) -> Iterator[Event]:
    """Draw all variants and tell of every sub-step; at the end `request.record` holds what came of it."""
    clock = clock or partial(synchronized_time, pipe.device)
    previews = Previews(request.watched, clock)
    runs = [VariantRun(variant, pipe, previews, clock, drift=request.drift) for variant in request.variants]
    yield request.started()
    yield from fair(runs)
    request.record = Record(
        request,
        str(pipe.device),
        str(pipe.model.dtype).removeprefix("torch."),
        pipe.engine,
        {run.variant.name: [png(picture) for picture in run.pictures] for run in runs},
        {run.variant.name: run.seconds for run in runs},
        difference([run.pictures for run in runs]),
    )
    yield {"event": "done", **request.record.summary()}


class Previews:
    """Pictures of what is under way, while they are watched and as many as the budget allows."""

    def __init__(self, watched: Callable[[], bool], clock: Callable[[], float]) -> None:
        self.watched = watched
        self._budget = DisplayBudget(share=SHARE, clock=clock)

    def of(self, frame: Frame) -> list[bytes | None]:
        """A small file for each image of a frame, or nothing if that would take too long."""
        if not (self.watched() and self._budget.due()):
            return [None] * len(frame.tokens)
        with self._budget.showing():
            return [webp(picture) for picture in frame.images]


class VariantRun:
    """A variant under way: its events sub-step by sub-step, and a clock of its own.

    The clock counts evaluations, draws and the final decoding, but neither pictures of what is under way, nor what
    drift takes, nor the other variant.
    """

    def __init__(
        self,
        variant: Variant,
        pipe: Pipeline,
        previews: Previews,
        clock: Callable[[], float],
        *,
        drift: bool = False,
    ) -> None:
        self.variant, self.pipe, self.previews, self.clock = variant, pipe, previews, clock
        self.drift = drift and variant.schedule.local > 0
        self.seconds = 0.0
        self.pictures: list[Image.Image] = []
        self.steps = self._steps()

    def _steps(self) -> Iterator[list[Event]]:
        """The events of every sub-step; images are drawn in the batches of all other runs on this device."""
        size = backoff_for(self.pipe).batch
        works = self.variant.works
        for first in range(0, len(works), size):
            yield from self._batch(works[first : first + size], first, size)

    def _batch(self, works: Sequence[Work], first: int, size: int) -> Iterator[list[Event]]:
        """Images that are drawn together, the one at place `first` and those after it."""
        schedule = self.variant.schedule
        pipe, log = self._measured() if self.drift else (self.pipe, None)
        canvases = begin(pipe, works, size)
        for step in range(1, len(schedule.steps) + 1):
            began, before = self.clock(), 0.0 if log is None else log.seconds
            canvas = next(canvases)
            self.seconds += self.clock() - began - (0.0 if log is None else log.seconds - before)
            frame = frame_of(self.pipe, schedule, step, [canvas], [len(works)])
            check_finite(works, frame)
            drift: Sequence[float | None] = [None] * len(works)
            if log is not None and frame.evaluation == "local":
                drift = latest(log, frame)[: len(works)]
            if not frame.last:
                yield self._frames(first, frame, self.previews.of(frame), drift)
        at_last, began = self.seconds, self.clock()
        results = finish(self.pipe, works, canvas.raster(), canvas.finite)
        pictures = [result.image for result in results if isinstance(result, Done)]
        self.seconds += self.clock() - began
        for result in results:
            if isinstance(result, Failed):
                raise ApiError(422, "non_finite", str(result))
        self.pictures += pictures
        frames = self._frames(first, frame, [webp(picture) for picture in pictures], drift, at_last)
        images = [
            {
                "event": "image",
                "variant": self.variant.name,
                "image": place,
                "seconds": self.seconds,
                "picture": png(picture),
            }
            for place, picture in enumerate(pictures, first)
        ]
        yield [*frames, *images]

    def _measured(self) -> tuple[Pipeline, ErrorLog]:
        """A pipeline that draws the same, and the log of its errors."""
        from recap.evaluation.error import measured  # brings much that nothing else here needs

        return measured(self.pipe, self.variant.schedule)

    def _frames(
        self,
        first: int,
        frame: Frame,
        pictures: Sequence[bytes | None],
        drift: Sequence[float | None],
        seconds: float | None = None,
    ) -> list[Event]:
        return [
            {
                "event": "frame",
                "variant": self.variant.name,
                "image": first + row,
                "step": frame.step,
                "steps": frame.steps,
                "group": frame.group,
                "evaluation": frame.evaluation,
                "decoded": frame.decoded,
                "seconds": self.seconds if seconds is None else seconds,
                "states": "".join(map(str, states)),
                "picture": pictures[row],
                "drift": drift[row],
            }
            for row, states in enumerate(frame.states.tolist())
        ]


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


def latest(log: ErrorLog, frame: Frame) -> list[float]:
    """The error of the local evaluation that a frame came from, for each image."""
    before = frame.decoded - frame.schedule.steps[frame.step - 1].tokens
    return log.errors[before][-1].tolist()


def check_finite(works: Sequence[Work], frame: Frame) -> None:
    """Stop at the first NaN or inf."""
    for row, (work, finite) in enumerate(zip(works, frame.finite.tolist(), strict=True)):
        if not finite:
            raise ApiError(422, "non_finite", str(Failed(work, frame.tokens[row])))


def difference(variants: Sequence[Sequence[Image.Image]]) -> list[float] | None:
    """Mean absolute difference of the pixels of two variants, image by image."""
    if len(variants) != 2:
        return None
    pairs = ([np.asarray(image, dtype=np.float64) for image in pair] for pair in zip(*variants, strict=True))
    return [float(np.abs(first - second).mean()) for first, second in pairs]


def webp(picture: Image.Image) -> bytes:
    """A small file of a picture, made quickly."""
    picture.save(file := io.BytesIO(), "WEBP", quality=QUALITY, method=0)
    return file.getvalue()
