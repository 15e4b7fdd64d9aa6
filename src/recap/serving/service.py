"""A model, its queue and its limits: requests in, images out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from PIL import Image

from recap.pipeline import Pipeline
from recap.serving.batching import Batcher
from recap.serving.limits import Limits, Refused
from recap.serving.metrics import Metrics
from recap.serving.work import Wish, Work, draw, schedule_of

T = TypeVar("T")
SIDE_THREADS = 2  # that unpack pictures and pack answers beside the model


class Service:
    """Everything that the endpoints share; made before the event loop, started inside it."""

    def __init__(self, pipe: Pipeline, name: str, limits: Limits | None = None) -> None:
        pipe.check_output("pil")
        self.pipe, self.name, self.limits = pipe, name, limits or Limits()
        self.schedule = schedule_of(pipe, Wish(), self.limits)
        if len(self.schedule.steps) > self.limits.max_steps:
            raise ValueError(
                f"--max-steps is {self.limits.max_steps} but the model's own schedule has "
                f"{len(self.schedule.steps)}; allow at least as many"
            )
        self.metrics = Metrics()
        self._side = ThreadPoolExecutor(SIDE_THREADS, "recap-side")
        self._batcher: Batcher | None = None
        self._runner: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to draw; called inside the event loop."""
        self._batcher = Batcher(
            lambda works, wanted: draw(self.pipe, works, self.limits.batch, wanted), self.limits, self.metrics
        )
        self._runner = asyncio.create_task(self._batcher.run())

    @property
    def alive(self) -> bool:
        return self._runner is not None and not self._runner.done()

    @property
    def ready(self) -> bool:
        return self.alive and not self.batcher.closing

    @property
    def batcher(self) -> Batcher:
        assert self._batcher is not None, "start() comes first"
        return self._batcher

    async def aside(self, function: Callable[..., T], *args: object) -> T:
        """Run something that takes a while without holding up the others; bad input becomes a refusal."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._side, partial(function, *args))
        except ValueError as error:
            raise Refused(422, "refused", str(error)) from error

    async def images(
        self, works: Sequence[Work], deadline: float, gone: Callable[[], Awaitable[None]]
    ) -> list[Image.Image]:
        """The images of a request, unless the time of the loop's clock is up or the client is `gone` before."""
        ticket = self.batcher.submit(works)
        left = asyncio.ensure_future(gone())
        either: set[asyncio.Future[Any]] = {ticket.done, left}
        try:
            seconds = max(0.0, deadline - asyncio.get_running_loop().time())
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if ticket.done.done():
                return ticket.done.result()
            if left.done():
                raise Refused(499, "left", "the client left before its images were drawn")
            raise Refused(
                504,
                "timeout",
                f"{len(works)} image(s) were not drawn in time; ask for fewer images or evaluations, "
                f"or come again later",
                retry_after=self.batcher.seconds_ahead(),
            )
        finally:
            left.cancel()
            self.batcher.drop(ticket)

    async def close(self, grace: float) -> None:
        """Finish accepted work within `grace` seconds and return the rest."""
        await self.batcher.close(grace)

    async def stop(self) -> None:
        """End the threads; what is left is returned."""
        await self.close(0.0)
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.wait({self._runner})
        await asyncio.get_running_loop().run_in_executor(None, self.batcher.release)
        self._side.shutdown(wait=False)
