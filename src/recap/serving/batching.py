"""Images that wait, and the one thread that draws them.

All of this lives in the event loop; only `draw` runs elsewhere, in a thread of its own. Nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from recap.serving.limits import Limits, Refused
from recap.serving.metrics import Gauge, Metrics
from recap.serving.work import Result, Wanted, Work

Draw = Callable[[Sequence[Work], Wanted], Iterable[tuple[Work, Result]]]
log = logging.getLogger("recap.serving")


class Ticket:
    """The images of one request; `done` is their list, or the refusal that came instead."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works
        self.done: asyncio.Future[list[Image.Image]] = asyncio.get_running_loop().create_future()
        self._images: dict[int, Image.Image] = {}

    @property
    def open(self) -> bool:
        """Whether somebody still waits for it; asked by the thread of the model too."""
        return not self.done.done()

    def deliver(self, number: int, result: Result) -> None:
        if not self.open:
            return
        if isinstance(result, Refused):
            self.done.set_exception(result)
            return
        self._images[number] = result
        if len(self._images) == len(self.works):
            self.done.set_result([self._images[i] for i in range(len(self.works))])


class Batcher:
    """Draws what waits, first come first served, with all that share the first one's schedule."""

    def __init__(self, draw: Draw, limits: Limits, metrics: Metrics) -> None:
        self._draw, self._limits, self._metrics = draw, limits, metrics
        self._waiting: deque[tuple[Ticket, int]] = deque()
        self._tickets: set[Ticket] = set()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recap-model")
        self._pace = 1.0  # seconds that a batch takes, by the latest ones
        self._running = 0
        self.closing = False
        metrics.gauges += [
            Gauge("recap_queue_images", "Images that wait.", lambda: len(self._waiting)),
            Gauge("recap_queue_limit_images", "Images that may wait.", lambda: limits.queue),
            Gauge("recap_running_images", "Images that are being drawn.", lambda: self._running),
        ]

    def check_room(self, num: int) -> None:
        """Refuse images for which there is no place, and say when to come again."""
        if self.closing:
            raise closed()
        waiting = len(self._waiting)
        if waiting + num > self._limits.queue:
            seconds = self.seconds_ahead()
            raise Refused(
                429,
                "full",
                f"{waiting} of {self._limits.queue} places are taken and {num} were asked for; "
                f"come again in {seconds} s, or ask for fewer images",
                retry_after=seconds,
            )

    def submit(self, works: Sequence[Work]) -> Ticket:
        """A place in the queue for every image, or a refusal."""
        self.check_room(len(works))
        ticket = Ticket(works)
        self._tickets.add(ticket)
        self._waiting.extend((ticket, number) for number in range(len(works)))
        self._arrived.set()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Forget a ticket: what waits of it leaves the queue, and its running batch goes on only for others."""
        self._tickets.discard(ticket)
        if ticket.open:
            ticket.done.cancel()
            self._waiting = deque(job for job in self._waiting if job[0] is not ticket)

    def seconds_ahead(self) -> int:
        """In how many seconds all that waits is likely to be drawn, at least one."""
        batches = math.ceil(len(self._waiting) / self._limits.batch)
        return max(1, min(math.ceil(batches * self._pace), math.ceil(self._limits.timeout)))

    async def run(self) -> None:
        """Draw batch after batch, for as long as the server lives."""
        while True:
            jobs = self._next()
            if not jobs:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            self._running = len(jobs)
            self._metrics.batch_images.see(len(jobs))
            began = time.perf_counter()
            await self._drawn({ticket.works[number]: (ticket, number) for ticket, number in jobs})
            seconds = time.perf_counter() - began
            self._running = 0
            self._pace = 0.7 * self._pace + 0.3 * seconds
            self._metrics.batch_seconds.see(seconds)

    def _next(self) -> list[tuple[Ticket, int]]:
        """The first that waits, and as many after it as can be drawn with it."""
        self._waiting = deque(job for job in self._waiting if job[0].open)
        if not self._waiting:
            return []
        ticket, number = self._waiting[0]
        schedule = ticket.works[number].schedule
        jobs = [job for job in self._waiting if job[0].works[job[1]].schedule == schedule][: self._limits.batch]
        taken = set(jobs)
        self._waiting = deque(job for job in self._waiting if job not in taken)
        return jobs

    async def _drawn(self, jobs: dict[Work, tuple[Ticket, int]]) -> None:
        """Let the thread of the model draw a batch, whose images go out as they come; it outlives what goes wrong."""
        loop, works = asyncio.get_running_loop(), list(jobs)
        missing = set(works)

        def deliver(work: Work, result: Result) -> None:
            ticket, number = jobs[work]
            missing.discard(work)
            (self._metrics.images if isinstance(result, Image.Image) else self._metrics.dropped).add()
            ticket.deliver(number, result)

        def thread() -> None:
            for work, result in self._draw(works, lambda work: jobs[work][0].open):
                loop.call_soon_threadsafe(deliver, work, result)

        try:
            await loop.run_in_executor(self._thread, thread)
        except Exception:
            log.exception("a batch of %d images with %s evaluations failed", len(works), works[0].schedule)
        await asyncio.sleep(0)  # what the thread sent last is delivered first
        for work in list(missing):
            deliver(work, Refused(500, "failed", "an image could not be drawn; the server's log says why, try later"))

    async def close(self, grace: float) -> None:
        """Take nothing more, finish what was accepted, and after `grace` seconds return what was not finished."""
        self.closing = True
        pending = [ticket.done for ticket in self._tickets if ticket.open]
        if pending:
            await asyncio.wait(pending, timeout=grace)
        for ticket in list(self._tickets):
            if ticket.open:
                ticket.done.set_exception(closed())
        self._waiting.clear()

    def release(self) -> None:
        """Let the thread go; a batch that nobody waits for stops at its next sub-step."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def closed() -> Refused:
    return Refused(503, "closing", "the server is shutting down; ask another one, or come again later", retry_after=5)
