"""Requests that wait, and the one thread that draws them.

All of this lives in the event loop; only `draw` and `compare` run elsewhere, in a thread of their own. Nothing needs
a lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from recap.core.memory import is_out_of_memory
from recap.pipelines import Pipeline, TextPipeline
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
from recap.server.compare import Comparison, compare
from recap.server.guard import ApiError
from recap.server.limits import Limits
from recap.server.requests import CheckedRequest, PendingRequest, read
from recap.server.schema import Answer, DrawRequest, Redraw, Write

log = logging.getLogger("recap.server")
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
SIDE_THREADS = 2  # that read requests and pack answers beside the one that draws
T = TypeVar("T")


class Metrics:
    """All that a server counts; touched by its event loop alone."""

    def __init__(self) -> None:
        self.registry = one = CollectorRegistry()
        self.requests = Counter("recap_requests", "Requests.", ("endpoint", "status"), registry=one)
        self.images = Counter("recap_images", "Images drawn for somebody.", registry=one)
        self.texts = Counter("recap_texts", "Texts written for somebody.", registry=one)
        self.dropped = Counter("recap_images_dropped", "Images or texts begun for nobody, or in vain.", registry=one)
        self.queue = Gauge("recap_queue_images", "Images and texts that wait.", registry=one)
        self.running = Gauge("recap_running_images", "Images and texts that are being drawn.", registry=one)
        self.batch_images = Histogram(
            "recap_batch_images", "Images or texts of a batch.", buckets=IMAGES, registry=one
        )
        self.request_seconds = Histogram(
            "recap_request_seconds", "Seconds to the answer.", ("endpoint",), buckets=SECONDS, registry=one
        )

    def drawn(self, pipe: Pipeline | TextPipeline, count: int = 1) -> None:
        """Somebody is given so many images, or texts."""
        (self.texts if isinstance(pipe, TextPipeline) else self.images).inc(count)

    def ended(self, path: str, status: int, seconds: float) -> None:
        self.requests.labels(path, status).inc()
        self.request_seconds.labels(path).observe(seconds)


class Worker:
    """Draws what waits, first come first served: a comparison by itself, images with all that are of their kind."""

    def __init__(
        self,
        models: Mapping[str, Pipeline | TextPipeline],
        limits: Limits | None = None,
        *,
        draw: Callable[..., Iterable[Done | Failed]] = draw,
        compare: Callable[..., Iterator[Any]] = compare,
    ) -> None:
        """`models` are pipelines by name, the default first; `draw` and `compare` may be other functions."""
        self.models, self.limits, self.metrics = models, limits or Limits(), Metrics()
        self.closing = False
        self._draw, self._compare = draw, compare
        self._waiting: deque[PendingRequest] = deque()
        self._pending: set[PendingRequest] = set()  # running ones too
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recap-model")
        self._side = ThreadPoolExecutor(SIDE_THREADS, "recap-side")
        self._unpack = ThreadPoolExecutor(1, "recap-unpack")  # pictures, which nothing else waits behind
        self._expected = 0  # images of requests that are being read
        self._running: asyncio.Task[None] | None = None
        self._pace = 1.0  # seconds that an image takes, by the latest ones
        self._busy = False
        self.metrics.queue.set_function(self.images_waiting)
        for pipe in models.values():
            pipe.need_tokenizer()
            pipe.progress, pipe.batch_size = False, self.limits.batch

    def start(self) -> None:
        """Begin to draw; called inside the event loop."""
        self._running = asyncio.create_task(self._run())

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.done()

    def images_waiting(self) -> int:
        return self._expected + sum(len(request.waiting) for request in self._waiting)

    def seconds_ahead(self) -> int:
        """In how many seconds all that waits is likely to be drawn, at least one."""
        return max(1, min(math.ceil(self.images_waiting() * self._pace), math.ceil(self.limits.timeout)))

    def admit(self, images: int) -> None:
        """Refuse images for which there is no place, before anything of them is made, and say when to come again."""
        if self.closing:
            raise closed()
        if images > self.limits.max_images:
            message = f"{images} images were asked for, but {self.limits.max_images} are allowed at a time"
            raise ApiError(422, "limit", f"{message}; ask for fewer")
        waiting, seconds = self.images_waiting(), self.seconds_ahead()
        if waiting + images > self.limits.queue:
            raise ApiError(
                429,
                "full",
                f"{waiting} of {self.limits.queue} places are taken and {images} were asked for; "
                f"come again in {seconds} s, or ask for fewer images",
                {"Retry-After": str(seconds)},
            )

    async def in_side_thread(self, function: Callable[..., T], *args: object, pictures: bool = False) -> T:
        """Run something that takes a while without holding up the others; bad input becomes a refusal.

        What nobody waits for any more is not begun.
        """
        threads = self._unpack if pictures else self._side
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, partial(function, *args))
        except ValueError as error:
            raise ApiError(422, "refused", str(error)) from error

    async def checked(self, asked: DrawRequest | Write) -> CheckedRequest:
        """What a request means; its images or texts have a place in the queue while that is found out."""
        count = asked.count(asked.first if isinstance(asked, Answer) else 0)
        self.admit(count)
        self._expected += count
        pictures = isinstance(asked, Redraw) and asked.image is not None
        try:
            return await self.in_side_thread(read, self.models, self.limits, asked, pictures=pictures)
        finally:
            self._expected -= count

    def submit(self, request: PendingRequest) -> None:
        """A place in the queue for every image, or a refusal."""
        self.admit(len(request.waiting))
        self._pending.add(request)
        self._waiting.append(request)
        self._arrived.set()
        if self._busy or len(self._waiting) > 1:
            request.moved(len(self._waiting))

    def drop(self, request: PendingRequest) -> None:
        """Forget a request: what waits of it leaves the queue, and its running batch goes on only for others."""
        self._pending.discard(request)
        if not request.done.cancel() and not request.done.cancelled():
            request.done.exception()  # it was there for whoever waited
        if request in self._waiting:
            self._waiting.remove(request)
            self._announce()

    async def images(self, request: PendingRequest) -> list[Any]:
        """The images or texts of a request, in its turn."""
        try:
            self.submit(request)
            return await request.done
        finally:
            self.drop(request)

    async def while_wanted(self, work: Coroutine[Any, Any, T], gone: Coroutine[Any, Any, None]) -> T:
        """What `work` comes to; it ends when time is up or the client is `gone` before."""
        working, left = asyncio.ensure_future(work), asyncio.ensure_future(gone)
        try:
            await asyncio.wait({working, left}, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if left.done():
                raise unwanted()
            raise ApiError(
                504,
                "timeout",
                f"the images were not drawn in {self.limits.timeout:g} s; ask for fewer images or evaluations, or "
                f"come again later",
                {"Retry-After": str(self.seconds_ahead())},
            )
        finally:
            working.cancel()
            left.cancel()
            await asyncio.wait({working, left})  # what they held is free again

    def _announce(self) -> None:
        for position, request in enumerate(self._waiting, 1):
            request.moved(position)

    async def _run(self) -> None:
        """Draw batch after batch, for as long as the server lives."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            self._busy, began = True, time.perf_counter()
            first, batch = self._waiting[0], self._take()
            self._announce()
            self.metrics.running.set(len(batch))
            self.metrics.batch_images.observe(len(batch))
            steps = self._events(first) if isinstance(first, Comparison) else self._images(first.asked.model, batch)
            refused = await self._in_thread(steps)
            for work, request in batch.items():
                if work not in request.finished:
                    self.metrics.dropped.inc()
                    request.fail(refused or unwanted())
            seconds = time.perf_counter() - began
            self._busy = False
            self._pace = 0.7 * self._pace + 0.3 * seconds / len(batch)
            self.metrics.running.set(0)

    def _take(self) -> dict[Work, Any]:
        """The works of a batch with their requests: the first that waits, and all that can be drawn with it."""
        first, taken = self._waiting[0], dict[Work, Any]()
        if isinstance(first, Comparison):
            self._waiting.popleft()
            return dict.fromkeys(first.asked.works, first)
        model, kind = first.asked.model, first.waiting[0].kind
        for request in self._waiting:
            room = self.limits.batch - len(taken)
            alike = request.asked.model == model and request.waiting[0].kind == kind
            if room and alike and not isinstance(request, Comparison):
                taken |= dict.fromkeys(request.waiting[:room], request)
                del request.waiting[:room]
        self._waiting = deque(request for request in self._waiting if request.waiting)
        return taken

    def _images(self, model: str, batch: dict[Work, Any]) -> Iterator[Callable[[], None]]:
        """Hand out the images of a batch as they are drawn."""
        pipe, left = self.models[model], lambda work: batch[work].done.done()
        for result in self._draw(pipe, list(batch), cancelled=left):
            request = batch[result.work]
            if isinstance(result, Done):
                yield partial(self.metrics.drawn, pipe)
                yield partial(request.put, result.work, pipe.answer(result))
            else:
                yield partial(request.fail, ApiError(422, "non_finite", str(result)))

    def _events(self, request: Comparison) -> Iterator[Callable[[], None]]:
        """Tell of a comparison as long as somebody listens."""
        for event in takewhile(lambda _: not request.done.done(), self._compare(request)):
            if event["event"] == "done":
                yield partial(self.metrics.drawn, request.asked.pipe, len(request.asked.works))
            yield partial(request.tell, event)

    async def _in_thread(self, steps: Iterator[Callable[[], None]]) -> ApiError | None:
        """Let the thread draw, and call here what it yields; says what went wrong, which the server outlives."""
        loop = asyncio.get_running_loop()

        def thread() -> None:
            for step in steps:
                loop.call_soon_threadsafe(step)

        try:
            await loop.run_in_executor(self._thread, thread)
        except ApiError as refused:
            return refused
        except Exception as error:
            log.exception("images could not be drawn")
            if is_out_of_memory(error):
                return ApiError(500, "memory", "memory did not suffice; ask for fewer images or evaluations")
            return ApiError(
                500, "failed", "the images could not be drawn; the server's log says why, try again later"
            )
        finally:
            await asyncio.sleep(0)  # what the thread sent last comes first
        return None

    async def close(self, grace: float = 0.0) -> None:
        """Take nothing more, finish what was accepted, and after `grace` seconds return what was not finished."""
        self.closing = True
        if self._pending:
            await asyncio.wait([request.done for request in self._pending], timeout=grace)
        for request in list(self._pending):
            request.fail(closed())
        self._waiting.clear()

    async def stop(self) -> None:
        """End the threads; what is left is returned, and a batch that nobody waits for stops at its next sub-step."""
        await self.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        for threads in (self._side, self._unpack):
            threads.shutdown(wait=False, cancel_futures=True)


def closed() -> ApiError:
    message = "the server is shutting down; ask another one, or come again later"
    return ApiError(503, "closing", message, {"Retry-After": "5"})


def unwanted() -> ApiError:
    return ApiError(499, "left", "the client left before its images were drawn")
