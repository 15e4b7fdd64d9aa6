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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any, TypeVar

from PIL import Image
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from recap.pipelines import Pipeline
from recap.runs.backoff import OutOfMemoryBackoff, is_out_of_memory
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
from recap.server.compare import Comparison, compare
from recap.server.limits import ApiError
from recap.server.models import Entry, ModelCache

log = logging.getLogger("recap.server")
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
T = TypeVar("T")


class PendingImages:
    """The images of one request; `done` becomes their list, or the refusal that came instead."""

    def __init__(self, entry: Entry, works: Sequence[Work]) -> None:
        self.entry, self.works, self.images = entry, works, len(works)
        self.waiting = list(works)  # not begun yet
        self.done: asyncio.Future[list[Image.Image]] = asyncio.get_running_loop().create_future()
        self._finished: dict[Work, Image.Image] = {}

    def put(self, work: Work, result: Image.Image | ApiError) -> None:
        """One of the images, as it is finished."""
        if isinstance(result, ApiError):
            self.fail(result)
            return
        self._finished[work] = result
        if not self.done.done() and len(self._finished) == self.images:
            self.done.set_result([self._finished[work] for work in self.works])

    def moved(self, position: int) -> None:
        """Nobody is told: the answer comes in one piece."""

    def fail(self, refused: ApiError) -> None:
        if not self.done.done():
            self.done.set_exception(refused)


Pending = PendingImages | Comparison


class Metrics:
    """All that a server counts; touched by its event loop alone."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        one = self.registry
        self.requests = Counter(
            "recap_requests_total", "Requests by endpoint and outcome.", ("endpoint", "outcome"), registry=one
        )
        self.images = Counter("recap_images_total", "Images drawn for somebody.", registry=one)
        self.dropped = Counter(
            "recap_images_dropped_total", "Images begun and not finished: clients gone, or faults.", registry=one
        )
        self.queue = Gauge("recap_queue_images", "Images that wait.", registry=one)
        self.queue_limit = Gauge("recap_queue_limit_images", "Images that may wait.", registry=one)
        self.running = Gauge("recap_running_images", "Images that are being drawn.", registry=one)
        self.batch_images = Histogram(
            "recap_batch_images", "Images that were asked for in a batch.", buckets=IMAGES, registry=one
        )
        self.batch_seconds = Histogram(
            "recap_batch_seconds", "Seconds that a batch took.", buckets=SECONDS, registry=one
        )
        self.request_seconds = Histogram(
            "recap_request_seconds", "Seconds from request to answer.", buckets=SECONDS, registry=one
        )

    def ended(self, path: str, outcome: str, seconds: float) -> None:
        """A request was answered."""
        self.requests.labels(path, outcome).inc()
        if path.startswith("/v1"):
            self.request_seconds.observe(seconds)


class Worker:
    """Draws what waits, first come first served: a comparison by itself, images with all that are of their kind."""

    def __init__(
        self,
        models: ModelCache,
        metrics: Metrics,
        *,
        draw: Callable[..., Iterable[Done | Failed]] = draw,
        compare: Callable[..., Iterator[Any]] = compare,
    ) -> None:
        self.models, self.limits, self.metrics = models, models.limits, metrics
        self.closing = False
        self._draw, self._compare = draw, compare
        self._waiting: deque[Pending] = deque()
        self._pending: set[Pending] = set()  # running ones too
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recap-model")
        self._pace = 1.0  # seconds that an image takes, by the latest ones
        self._busy = False
        metrics.queue_limit.set(self.limits.queue)
        metrics.queue.set_function(self.images_waiting)

    def images_waiting(self) -> int:
        return sum(len(each.waiting) if isinstance(each, PendingImages) else each.images for each in self._waiting)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is drawn."""
        return not self._busy and not self._waiting

    def check_room(self, images: int) -> None:
        """Refuse images for which there is no place, and say when to come again."""
        if self.closing:
            raise closed()
        waiting = self.images_waiting()
        if waiting + images > self.limits.queue:
            seconds = self.seconds_ahead()
            raise ApiError(
                429,
                "full",
                f"{waiting} of {self.limits.queue} places are taken and {images} were asked for; "
                f"come again in {seconds} s, or ask for fewer images",
                retry_after=seconds,
            )

    def submit(self, request: Pending) -> None:
        """A place in the queue for every image, or a refusal."""
        self.check_room(request.images)
        self._pending.add(request)
        self._waiting.append(request)
        self._arrived.set()
        if self._busy or len(self._waiting) > 1:
            request.moved(len(self._waiting))

    def drop(self, request: Pending) -> None:
        """Forget a request: what waits of it leaves the queue, and its running batch goes on only for others."""
        self._pending.discard(request)
        if not request.done.cancel() and not request.done.cancelled():
            request.done.exception()  # it was there for whoever waited
        if request in self._waiting:
            self._waiting.remove(request)
            self._announce()

    def _announce(self) -> None:
        for position, request in enumerate(self._waiting, 1):
            request.moved(position)

    def seconds_ahead(self) -> int:
        """In how many seconds all that waits is likely to be drawn, at least one."""
        return max(1, min(math.ceil(self.images_waiting() * self._pace), math.ceil(self.limits.timeout)))

    async def run(self) -> None:
        """Draw batch after batch, for as long as the server lives."""
        while True:
            if not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            self._busy, began = True, time.perf_counter()
            first = self._waiting[0]
            if isinstance(first, PendingImages):
                images = await self._draw_images(first.entry, self._take(first))
            else:
                self._waiting.popleft()
                images = await self._draw_comparison(first)
            seconds = time.perf_counter() - began
            self._busy = False
            self._pace = 0.7 * self._pace + 0.3 * seconds / images
            self.metrics.running.set(0)
            self.metrics.batch_seconds.observe(seconds)

    def _take(self, first: PendingImages) -> dict[Work, PendingImages]:
        """The works of a batch: the first that waits, and as many as can be drawn with it."""
        taken: dict[Work, PendingImages] = {}
        kind = first.waiting[0].kind
        for request in self._waiting:
            if isinstance(request, PendingImages) and request.entry is first.entry and request.works[0].kind == kind:
                room = self.limits.batch - len(taken)
                taken |= dict.fromkeys(request.waiting[:room], request)
                del request.waiting[:room]
        self._waiting = deque(each for each in self._waiting if isinstance(each, Comparison) or each.waiting)
        return taken

    async def _draw_images(self, entry: Entry, requests: dict[Work, PendingImages]) -> int:
        """A batch of images, which go out as they come."""
        missing = set(requests)

        def results(pipe: Pipeline, backoff: OutOfMemoryBackoff) -> Iterator[tuple[Work, Image.Image | ApiError]]:
            left = lambda work: requests[work].done.done()  # noqa: E731
            for result in self._draw(pipe, list(requests), cancelled=left, backoff=backoff):
                refused = ApiError(422, "non_finite", str(result))
                yield result.work, result.image if isinstance(result, Done) else refused

        def put(result: tuple[Work, Image.Image | ApiError]) -> None:
            work, image = result
            missing.discard(work)
            (self.metrics.images if isinstance(image, Image.Image) else self.metrics.dropped).inc()
            requests[work].put(work, image)

        refused = await self._in_thread(entry, len(requests), results, put)
        for work in list(missing):
            put((work, refused or ApiError(499, "left", "nobody waited for this image any more")))
        return len(requests)

    async def _draw_comparison(self, request: Comparison) -> int:
        """Both variants, which are told of sub-step by sub-step."""

        def events(pipe: Pipeline, _: OutOfMemoryBackoff) -> Iterator[Any]:
            return takewhile(lambda _: not request.done.done(), self._compare(request, pipe))

        refused = await self._in_thread(request.entry, request.images, events, request.tell)
        request.fail(refused or closed())  # if it is not done
        finished = not request.done.cancelled() and request.done.exception() is None
        (self.metrics.images if finished else self.metrics.dropped).inc(request.images)
        return request.images

    async def _in_thread(
        self, entry: Entry, images: int, draw: Callable[..., Iterator[T]], put: Callable[[T], None]
    ) -> ApiError | None:
        """Let the thread draw, and put what it yields here; says what went wrong, which the server outlives."""
        loop = asyncio.get_running_loop()
        self._announce()
        self.metrics.running.set(images)
        self.metrics.batch_images.observe(images)

        def thread() -> None:
            for each in draw(*self.models.loaded(entry)):
                loop.call_soon_threadsafe(put, each)

        try:
            await loop.run_in_executor(self._thread, thread)
        except ApiError as refused:
            return refused
        except Exception as error:
            log.exception("%d images by %s could not be drawn", images, entry.name)
            return fault(error)
        finally:
            await asyncio.sleep(0)  # what the thread sent last comes first
        return None

    async def close(self, grace: float) -> None:
        """Take nothing more, finish what was accepted, and after `grace` seconds return what was not finished."""
        self.closing = True
        pending = [request.done for request in self._pending if not request.done.done()]
        if pending:
            await asyncio.wait(pending, timeout=grace)
        for request in list(self._pending):
            request.fail(closed())
        self._waiting.clear()

    def release(self) -> None:
        """Let the thread go; a batch that nobody waits for stops at its next sub-step."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def closed() -> ApiError:
    return ApiError(
        503, "closing", "the server is shutting down; ask another one, or come again later", retry_after=5
    )


def fault(error: Exception) -> ApiError:
    """What a client is told of an error; what it says is for the log."""
    if is_out_of_memory(error):
        return ApiError(500, "memory", "memory did not suffice; ask for fewer images or evaluations")
    return ApiError(500, "failed", "the images could not be drawn; the server's log says why, try again later")
