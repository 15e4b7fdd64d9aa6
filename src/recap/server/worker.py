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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar

from PIL import Image
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from recap.core.memory import is_out_of_memory
from recap.core.options import SamplingOptions
from recap.pipelines import Pipeline
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
from recap.server.compare import Comparison, compare
from recap.server.guard import ApiError
from recap.server.limits import Limits
from recap.server.requests import Asked, Pending

log = logging.getLogger("recap.server")
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
SIDE_THREADS = 2  # that unpack pictures and pack answers beside the one that draws
T = TypeVar("T")


class PendingImages(Pending):
    """The images of one request; `done` becomes their list."""

    def __init__(self, asked: Asked) -> None:
        super().__init__(asked)
        self._finished: dict[Work, Image.Image] = {}

    def put(self, work: Work, image: Image.Image) -> None:
        """One of the images, as it is finished."""
        self._finished[work] = image
        if not self.done.done() and len(self._finished) == len(self.asked.works):
            self.done.set_result([self._finished[work] for work in self.asked.works])


class Metrics:
    """All that a server counts; touched by its event loop alone."""

    def __init__(self) -> None:
        self.registry = one = CollectorRegistry()
        self.requests = Counter("recap_requests", "Requests.", ("endpoint", "status"), registry=one)
        self.images = Counter("recap_images", "Images drawn for somebody.", registry=one)
        self.dropped = Counter("recap_images_dropped", "Images begun for nobody, or in vain.", registry=one)
        self.queue = Gauge("recap_queue_images", "Images that wait.", registry=one)
        self.running = Gauge("recap_running_images", "Images that are being drawn.", registry=one)
        self.batch_images = Histogram("recap_batch_images", "Images of a batch.", buckets=IMAGES, registry=one)
        self.batch_seconds = Histogram("recap_batch_seconds", "Seconds of a batch.", buckets=SECONDS, registry=one)
        self.request_seconds = Histogram(
            "recap_request_seconds", "Seconds from request to answer.", buckets=SECONDS, registry=one
        )

    def ended(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self.requests.labels(path, status).inc()
        if path.startswith("/v1"):
            self.request_seconds.observe(seconds)


class Worker:
    """Draws what waits, first come first served: a comparison by itself, images with all that are of their kind."""

    def __init__(
        self,
        models: Mapping[str, Pipeline],
        limits: Limits | None = None,
        *,
        draw: Callable[..., Iterable[Done | Failed]] = draw,
        compare: Callable[..., Iterator[Any]] = compare,
    ) -> None:
        """`models` are pipelines by name, the default first; `draw` and `compare` may be other functions."""
        self.models, self.limits, self.metrics = models, limits or Limits(), Metrics()
        self.closing = False
        self._draw, self._compare = draw, compare
        self._waiting: deque[Pending] = deque()
        self._pending: set[Pending] = set()  # running ones too
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "recap-model")
        self._side = ThreadPoolExecutor(SIDE_THREADS, "recap-side")
        self._running: asyncio.Task[None] | None = None
        self._pace = 1.0  # seconds that an image takes, by the latest ones
        self._busy = False
        self.metrics.queue.set_function(self.images_waiting)
        for name, pipe in models.items():
            if pipe.tokenizer is None:
                raise ValueError(
                    f"{name} has no tokenizer to make images with; put one into its sub-folder `tokenizer`"
                )
            steps = len(pipe.schedule().steps)
            if steps > self.limits.max_steps:
                raise ValueError(
                    f"--max-steps is {self.limits.max_steps} but {name}'s own schedule has {steps}; "
                    f"allow at least as many"
                )
            pipe.progress, pipe.batch_size = False, self.limits.batch

    def warm_up(self) -> None:
        """Draw with the default model, so that the first client need not wait for what happens only once."""
        pipe = next(iter(self.models.values()))
        labels, num = ([0], None) if pipe.model.classes else (None, 1)
        for _ in self._draw(pipe, pipe.works(labels, num, SamplingOptions(full=1), seed=0)):
            pass

    def start(self) -> None:
        """Begin to draw; called inside the event loop."""
        self._running = asyncio.create_task(self._run())

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is drawn."""
        return not self._busy and not self._waiting

    def images_waiting(self) -> int:
        return sum(len(request.waiting) for request in self._waiting)

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

    async def in_side_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run something that takes a while without holding up the others; bad input becomes a refusal."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._side, partial(function, *args))
        except ValueError as error:
            raise ApiError(422, "refused", str(error)) from error

    def submit(self, request: Pending) -> None:
        """A place in the queue for every image, or a refusal."""
        self.admit(len(request.waiting))
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

    async def images(self, request: PendingImages, gone: Callable[[], Awaitable[None]]) -> list[Image.Image]:
        """The images of a request, unless time is up or the client is `gone` before."""
        self.submit(request)
        left = asyncio.ensure_future(gone())
        try:
            either: set[asyncio.Future[Any]] = {request.done, left}
            await asyncio.wait(either, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if request.done.done():
                return request.done.result()
            if left.done():
                raise unwanted()
            raise ApiError(
                504,
                "timeout",
                f"{len(request.asked.works)} image(s) were not drawn in {self.limits.timeout:g} s; ask for fewer "
                f"images or evaluations, or come again later",
                {"Retry-After": str(self.seconds_ahead())},
            )
        finally:
            left.cancel()
            self.drop(request)

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
            first = self._waiting[0]
            if isinstance(first, Comparison):
                self._waiting.popleft()
                images = await self._draw_comparison(first)
            else:
                images = await self._draw_images(first.asked.model, self._take(first))
            seconds = time.perf_counter() - began
            self._busy = False
            self._pace = 0.7 * self._pace + 0.3 * seconds / images
            self.metrics.running.set(0)
            self.metrics.batch_seconds.observe(seconds)

    def _take(self, first: Pending) -> dict[Work, PendingImages]:
        """The works of a batch: the first that waits, and as many as can be drawn with it."""
        taken: dict[Work, PendingImages] = {}
        model, kind = first.asked.model, first.waiting[0].kind
        for request in self._waiting:
            if (
                isinstance(request, PendingImages)
                and request.asked.model == model
                and request.waiting[0].kind == kind
                and (room := self.limits.batch - len(taken))
            ):
                taken |= dict.fromkeys(request.waiting[:room], request)
                del request.waiting[:room]
        self._waiting = deque(request for request in self._waiting if request.waiting)
        return taken

    async def _draw_images(self, model: str, requests: dict[Work, PendingImages]) -> int:
        """A batch of images, which go out as they come."""
        pipe, missing = self.models[model], set(requests)

        def results() -> Iterator[tuple[Work, Image.Image | ApiError]]:
            left = lambda work: requests[work].done.done()  # noqa: E731
            for result in self._draw(pipe, list(requests), cancelled=left):
                refused = ApiError(422, "non_finite", str(result))
                yield result.work, result.image if isinstance(result, Done) else refused

        def put(result: tuple[Work, Image.Image | ApiError]) -> None:
            work, image = result
            if isinstance(image, ApiError):
                requests[work].fail(image)
            else:
                missing.discard(work)
                self.metrics.images.inc()
                requests[work].put(work, image)

        refused = await self._in_thread(model, len(requests), results(), put)
        for work in missing:
            self.metrics.dropped.inc()
            requests[work].fail(refused or unwanted())
        return len(requests)

    async def _draw_comparison(self, request: Comparison) -> int:
        """Both variants, which are told of sub-step by sub-step."""
        images = len(request.waiting)
        events = takewhile(lambda _: not request.done.done(), self._compare(request))
        refused = await self._in_thread(request.asked.model, images, events, request.put)
        request.fail(refused or closed())  # if it is not done
        finished = not request.done.cancelled() and request.done.exception() is None
        (self.metrics.images if finished else self.metrics.dropped).inc(images)
        return images

    async def _in_thread(
        self, model: str, images: int, results: Iterable[T], put: Callable[[T], None]
    ) -> ApiError | None:
        """Let the thread draw, and put what comes of it here; says what went wrong, which the server outlives."""
        loop = asyncio.get_running_loop()
        self._announce()
        self.metrics.running.set(images)
        self.metrics.batch_images.observe(images)

        def thread() -> None:
            for each in results:
                loop.call_soon_threadsafe(put, each)

        try:
            await loop.run_in_executor(self._thread, thread)
        except ApiError as refused:
            return refused
        except Exception as error:
            log.exception("%d images by %s could not be drawn", images, model)
            return fault(error)
        finally:
            await asyncio.sleep(0)  # what the thread sent last comes first
        return None

    async def close(self, grace: float = 0.0) -> None:
        """Take nothing more, finish what was accepted, and after `grace` seconds return what was not finished."""
        self.closing = True
        pending = [request.done for request in self._pending if not request.done.done()]
        if pending:
            await asyncio.wait(pending, timeout=grace)
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
        self._side.shutdown(wait=False, cancel_futures=True)


def closed() -> ApiError:
    message = "the server is shutting down; ask another one, or come again later"
    return ApiError(503, "closing", message, {"Retry-After": "5"})


def unwanted() -> ApiError:
    return ApiError(499, "left", "the client left before its images were drawn")


def fault(error: Exception) -> ApiError:
    """What a client is told of an error; what it says is for the log."""
    if is_out_of_memory(error):
        return ApiError(500, "memory", "memory did not suffice; ask for fewer images or evaluations")
    return ApiError(500, "failed", "the images could not be drawn; the server's log says why, try again later")
