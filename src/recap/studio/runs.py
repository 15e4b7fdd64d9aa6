"""Runs that wait, and the one thread that draws them.

All of this lives in the event loop; only `_draw` runs elsewhere, in a thread of its own. Nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from recap.memory import is_out_of_memory
from recap.serving.batching import closed
from recap.serving.limits import Refused
from recap.studio.jobs import Job
from recap.studio.limits import Limits
from recap.studio.models import Entry, Shelf
from recap.studio.paces import Paces
from recap.studio.race import Event, Pane, race
from recap.studio.record import Kept, Record, difference

log = logging.getLogger("recap.studio")
BACKLOG = 64  # events that a visitor may be behind before it is sent no more pictures of what is under way


class Run:
    """A job that waits or is drawn, and the events that its visitor has not been sent yet."""

    def __init__(self, job: Job) -> None:
        self.id, self.job = secrets.token_urlsafe(9), job
        self.position = 0  # in the queue; 0 when it does not wait
        self.left = False  # nobody listens any more; looked at by the thread too
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def watched(self) -> bool:
        """Whether the visitor reads about as fast as the run goes."""
        return self._events.qsize() <= BACKLOG

    def tell(self, event: Event) -> None:
        if not self.left:
            self._events.put_nowait(event)

    def end(self) -> None:
        self._events.put_nowait(None)

    async def events(self) -> AsyncIterator[list[Event]]:
        """What there is to tell, until the run is over; what has come together is given together."""
        while (event := await self._events.get()) is not None:
            several: list[Event] = [event]
            while not self._events.empty():
                event = self._events.get_nowait()
                if event is None:
                    yield several
                    return
                several.append(event)
            yield several


class Runs:
    """Draws what waits, first come first served, one run at a time."""

    def __init__(self, shelf: Shelf, limits: Limits, paces: Paces) -> None:
        self.shelf, self.limits, self.paces = shelf, limits, paces
        self.kept = Kept(limits.max_kept)
        self._waiting: list[Run] = []
        self._running: Run | None = None
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recap-studio")
        self._seconds = 5.0  # that a run takes, by the latest ones
        self._closing = False

    def check_room(self) -> None:
        """Refuse a run for which there is no place, and say when to come again."""
        if self._closing:
            raise closed()
        waiting = len(self._waiting)
        if waiting >= self.limits.queue:
            seconds = max(1, math.ceil(self._seconds * waiting))
            raise Refused(429, "full", f"{waiting} runs wait already; come again in {seconds} s", retry_after=seconds)

    def submit(self, job: Job) -> Run:
        """A place in the queue, or a refusal."""
        self.check_room()
        run = Run(job)
        self._waiting.append(run)
        self._arrived.set()
        if self._running is not None or len(self._waiting) > 1:
            self._announce()
        return run

    def drop(self, run: Run) -> None:
        """Forget a run whose visitor has left: it leaves the queue, or stops before its next sub-step."""
        run.left = True
        if run in self._waiting:
            self._waiting.remove(run)
            self._announce()

    def _announce(self) -> None:
        """Tell those who wait where they stand, if that has changed."""
        for position, run in enumerate(self._waiting, 1):
            if run.position != position:
                run.position = position
                run.tell({"event": "queued", "position": position})

    async def work(self) -> None:
        """Draw run after run, for as long as the server lives."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            run = self._running = self._waiting.pop(0)
            self._announce()
            began = time.perf_counter()
            await self._drawn(run)
            self._running = None
            self._seconds = 0.5 * self._seconds + 0.5 * (time.perf_counter() - began)

    async def _drawn(self, run: Run) -> None:
        """Let the thread draw a run; the server outlives whatever goes wrong."""
        loop = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(run.tell, event)

        try:
            record = await loop.run_in_executor(self._thread, self._draw, run, tell)
        except Refused as refused:
            run.tell(problem(refused))
        except Exception as error:
            log.exception("a run of %s with %s evaluations failed", run.job.entry.name, run.job.lanes[-1].schedule)
            run.tell(problem(fault(error)))
        else:
            if record is not None:
                await asyncio.sleep(0)  # what the thread sent last comes first
                self.kept.add(record)
                run.tell({"event": "done", **record.summary()})
        run.end()

    def _draw(self, run: Run, tell: Callable[[Event], None]) -> Record | None:
        """In the thread: the whole run, or nothing if its visitor has left."""
        job = run.job
        if run.left:
            return None
        pipe = self.shelf.pipeline(job.entry.name)
        panes = [Pane(lane, pipe, drift=job.asked.drift, watched=run.watched) for lane in job.lanes]
        dtype = str(pipe.model.dtype).removeprefix("torch.")
        record = Record(run.id, job, str(pipe.device), dtype, pipe.engine)
        tell(started(run))
        for event in race(panes):
            if run.left:
                return None
            record.events.append(event)
            tell(event)
        for pane in panes:
            note(self.paces, job.entry, pane)
        record.seconds = {pane.lane.name: pane.clock for pane in panes}
        record.difference = difference([pane.pictures for pane in panes])
        return record

    async def close(self) -> None:
        """Stop at once: what waits and what is drawn is told so."""
        self._closing = True
        for run in [*self._waiting, *([] if self._running is None else [self._running])]:
            run.tell(problem(closed()))
            run.end()
            run.left = True
        self._waiting.clear()

    def release(self) -> None:
        """Let the thread go, which stops at its next sub-step."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def note(paces: Paces, entry: Entry, pane: Pane) -> None:
    """Remember how long a pane took, by the image."""
    images = len(pane.lane.works)
    took = [seconds / images for seconds in pane.took]
    paces.see(entry.name, entry.blank.model.config, pane.lane.schedule, took, pane.decoding / images)


def started(run: Run) -> Event:
    """What is known of a run before its first sub-step."""
    job = run.job
    return {
        "event": "started",
        "run": run.id,
        "model": job.entry.name,
        "images": len(job.labels),
        "labels": job.names(),
        "seed": job.asked.seed,
        "grid": job.entry.grid,
        "side": job.entry.blank.side,
        "panes": [
            {
                "pane": lane.name,
                "evaluations": str(lane.schedule),
                "kinds": lane.kinds,
                "tokens": list(lane.schedule.sizes),
            }
            for lane in job.lanes
        ],
    }


def fault(error: Exception) -> Refused:
    """What a visitor is told of an error; what it says is for the log."""
    if is_out_of_memory(error):
        return Refused(500, "memory", "memory did not suffice for this run; ask for fewer images")
    return Refused(500, "failed", "the run failed; the server's log says why, try again")


def problem(refused: Refused) -> Event:
    return {"event": "error", "code": refused.code, "message": refused.message}
