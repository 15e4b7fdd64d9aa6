"""Models, their queue and their limits: requests in, images out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from PIL import Image

from recap.core.options import SamplingOptions
from recap.runs.draw import draw
from recap.server.files import Kept
from recap.server.limits import ApiError
from recap.server.models import ModelCache
from recap.server.worker import Metrics, PendingImages, Worker

SIDE_THREADS = 2  # that unpack pictures and pack answers beside the one that draws
T = TypeVar("T")


class Service:
    """Everything that the endpoints share; made before the event loop, started inside it."""

    def __init__(self, models: ModelCache, **draws: Any) -> None:
        """`draws` may name other functions to `draw` and to `compare` with."""
        self.models, self.limits, self.metrics = models, models.limits, Metrics()
        self.kept = Kept(self.limits.max_kept)
        self._draws = draws
        self._side = ThreadPoolExecutor(SIDE_THREADS, "recap-side")
        self._worker: Worker | None = None
        self._running: asyncio.Task[None] | None = None

    def warm_up(self) -> None:
        """Load the default model and draw with it, so that the first client need not wait for that."""
        entry = self.models.entry(None)
        asked = entry.asked(self.limits, SamplingOptions(full=1), labels=None, num=1)
        pipe, backoff = self.models.loaded(entry)
        for _ in draw(pipe, asked.works, backoff=backoff):
            pass

    def start(self) -> None:
        """Begin to draw; called inside the event loop."""
        self._worker = Worker(self.models, self.metrics, **self._draws)
        self._running = asyncio.create_task(self._worker.run())

    @property
    def worker(self) -> Worker:
        assert self._worker is not None, "start() comes first"
        return self._worker

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.done()

    @property
    def ready(self) -> bool:
        return self.alive and not self.worker.closing

    def admit(self, images: int) -> None:
        """Refuse what there is no room for, before any picture is unpacked."""
        self.limits.check(images, SamplingOptions())
        self.worker.check_room(images)

    async def run_in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run something that takes a while without holding up the others; bad input becomes a refusal."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._side, partial(function, *args))
        except ValueError as error:
            raise ApiError(422, "refused", str(error)) from error

    async def images(
        self, request: PendingImages, deadline: float, gone: Callable[[], Awaitable[None]]
    ) -> list[Image.Image]:
        """The images of a request, unless the time of the loop's clock is up or the client is `gone` before."""
        self.worker.submit(request)
        left = asyncio.ensure_future(gone())
        either: set[asyncio.Future[Any]] = {request.done, left}
        try:
            seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if request.done.done():
                return request.done.result()
            if left.done():
                raise ApiError(499, "left", "the client left before its images were drawn")
            raise ApiError(
                504,
                "timeout",
                f"{request.images} image(s) were not drawn in time; ask for fewer images or evaluations, "
                f"or come again later",
                retry_after=self.worker.seconds_ahead(),
            )
        finally:
            left.cancel()
            self.worker.drop(request)

    async def close(self, grace: float = 0.0) -> None:
        """Finish accepted work within `grace` seconds and return the rest."""
        if self._worker is not None:
            await self._worker.close(grace)

    async def stop(self) -> None:
        """End the threads; what is left is returned."""
        await self.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await asyncio.get_running_loop().run_in_executor(None, self.worker.release)
        self._side.shutdown(wait=False, cancel_futures=True)
