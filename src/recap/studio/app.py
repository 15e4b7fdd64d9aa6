"""The endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Body, FastAPI
from fastapi.responses import Response
from starlette.routing import Route

import recap
from recap.planning import plan
from recap.serving.errors import handle_errors
from recap.serving.guard import Escaped, Guard
from recap.serving.limits import Refused
from recap.serving.metrics import Metrics
from recap.serving.work import Wish, schedule_of
from recap.studio import files, schema
from recap.studio.jobs import plainly, prepared
from recap.studio.limits import Limits
from recap.studio.models import Shelf
from recap.studio.paces import Paces
from recap.studio.race import Pane
from recap.studio.results import RESULTS
from recap.studio.runs import Runs, note
from recap.studio.safety import Safety
from recap.studio.stream import Streamed

T = TypeVar("T")
PAGE = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".json": "application/json",
}
PATIENCE = 3.0  # seconds of a first evaluation; a model that takes more is not tried further before it is asked for
SIDE_THREADS = 2  # that unpack pictures and make files beside the one that draws


class Studio:
    """Everything that the endpoints share; made before the event loop, started inside it."""

    def __init__(self, shelf: Shelf, limits: Limits | None = None) -> None:
        self.shelf, self.limits = shelf, limits or Limits()
        self.paces = Paces()
        self._side = ThreadPoolExecutor(SIDE_THREADS, "recap-side")
        self._runs: Runs | None = None
        self._worker: asyncio.Task[None] | None = None
        for entry in shelf.entries.values():
            steps = len(schedule_of(entry.blank, Wish(), self.limits).steps)
            if steps > self.limits.max_steps:
                raise ValueError(
                    f"--max-steps is {self.limits.max_steps} but {entry.name}'s own schedule has {steps}; "
                    f"allow at least as many"
                )

    def warm_up(self) -> None:
        """Load the default model and draw with it a little, so that the first visitor need not wait for that."""
        entry = self.shelf.entry(None)
        room = min(self.limits.max_steps, entry.blank.model.num_tokens)
        for full, local in ((1, 0), (3, 3)):  # what the first one takes says nothing
            asked = schema.Generate(full=full, local=local, compare=False)
            if full + local > room:
                break
            pane = Pane(prepared(self.shelf, self.limits, asked).lanes[0], self.shelf.pipeline(entry.name))
            for _ in pane.steps:
                pass
            if local:
                note(self.paces, entry, pane)
            elif pane.clock > PATIENCE:
                break

    @property
    def runs(self) -> Runs:
        assert self._runs is not None, "start() comes first"
        return self._runs

    def start(self) -> None:
        """Begin to draw; called inside the event loop."""
        self._runs = Runs(self.shelf, self.limits, self.paces)
        self._worker = asyncio.create_task(self._runs.work())

    @property
    def alive(self) -> bool:
        return self._worker is not None and not self._worker.done()

    async def aside(self, function: Callable[..., T], *args: object) -> T:
        """Run something that takes a while without holding up the others; bad input becomes a refusal."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._side, partial(function, *args))
        except ValueError as error:
            raise Refused(422, "refused", str(error)) from error

    async def close(self) -> None:
        """End all runs at once."""
        if self._runs is not None:
            await self._runs.close()

    async def stop(self) -> None:
        """End the threads."""
        await self.close()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})
        await asyncio.get_running_loop().run_in_executor(None, self.runs.release)
        self._side.shutdown(wait=False, cancel_futures=True)


def create_app(studio: Studio, hosts: Collection[str] = ()) -> FastAPI:
    """The application around a studio; `hosts` are names that it is reached by, beside those of this machine."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        studio.start()
        yield
        await studio.stop()

    app = FastAPI(title="ReCAP Studio", version=recap.__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    shelf, limits = studio.shelf, studio.limits

    @app.get("/")
    async def page() -> Response:
        """The page."""
        return static("index.html")

    @app.get("/static/{name}")
    async def part(name: str) -> Response:
        """A part of the page."""
        return static(name)

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the process works."""
        return Escaped({"status": "ok" if studio.alive else "broken"}, 200 if studio.alive else 503)

    @app.get("/api/models")
    async def models() -> Response:
        """What there is to draw with, and how much of it at a time."""
        return Escaped(
            {
                "default": shelf.default,
                "models": [entry.about(limits) for entry in shelf.entries.values()],
                "limits": {
                    "images": limits.max_images,
                    "steps": limits.max_steps,
                    "queue": limits.queue,
                    "pixels": limits.max_pixels,
                    "body": limits.max_body,
                },
                "version": recap.__version__,
            }
        )

    @app.post("/api/plan")
    async def predict(asked: Annotated[schema.Plan, Body()]) -> Response:
        """What an image with a schedule costs, without drawing it."""
        return Escaped(await studio.aside(cost, studio, asked))

    @app.post("/api/generate")
    async def generate(asked: Annotated[schema.Generate, Body()]) -> Response:
        """Draw images, and tell of every sub-step."""
        return await streamed(studio, asked)

    @app.post("/api/edit")
    async def edit(asked: Annotated[schema.Edit, Body()]) -> Response:
        """Draw a part of a picture anew, and tell of every sub-step."""
        return await streamed(studio, asked)

    @app.get("/api/runs/{run}/{name}")
    async def kept(run: str, name: str) -> Response:
        """A finished run as a file."""
        record = studio.runs.kept.find(run)
        if record is None or name not in files.TYPES:
            raise Refused(
                404,
                "run",
                f"of this run there is no {name[:60]!r}: only the latest finished runs are kept, "
                f"as {', '.join(files.TYPES)}; draw it again",
            )
        if name not in record.files:
            record.files[name] = await studio.aside(files.made, record, name)
            studio.runs.kept.trim()
        content = record.files[name]
        disposition = f'attachment; filename="recap-{run}-{name}"'
        return Response(content, media_type=files.TYPES[name], headers={"Content-Disposition": disposition})

    @app.get("/api/results")
    async def results() -> Response:
        """Published quality and time of the models that come with the package."""
        return Response(RESULTS.read_bytes(), media_type="application/json")

    handle_errors(app)
    paths = {route.path: set(route.methods or ()) for route in app.routes if isinstance(route, Route)}
    app.add_middleware(Guard, limits=limits, metrics=Metrics(), token=None, paths=paths)
    app.add_middleware(Safety, hosts=hosts)
    return app


async def streamed(studio: Studio, asked: schema.Generate) -> Response:
    """The events of the run that is asked for; what is wrong with it is said before it waits."""
    studio.runs.check_room()  # before any picture is unpacked
    job = await studio.aside(prepared, studio.shelf, studio.limits, asked)
    return Streamed(studio.runs.submit(job), studio.runs)


def cost(studio: Studio, asked: schema.Plan) -> dict[str, Any]:
    """The cost of one image with the schedule that is asked for."""
    entry, wish = studio.shelf.entry(asked.model), asked.wish()
    sizes = entry.blank.model.config
    schedule = schedule_of(entry.blank, wish, studio.limits)
    plain = schedule_of(entry.blank, plainly(wish, schedule), studio.limits)
    told = plan(entry.name, sizes, schedule).as_dict()
    kept = ("full", "local", "plain", "groups", "flops", "flops_plain", "cache_bytes", "speedup")
    seconds = [studio.paces.predicted(entry.name, sizes, each) for each in (plain, schedule)]
    return {
        **{name: told[name] for name in kept},
        "chain": asked.chain,
        "seconds": None if None in seconds else dict(zip(("plain", "reused"), seconds, strict=True)),
    }


def static(name: str) -> Response:
    """A file of the page, if there is one."""
    path = PAGE / name
    if path.parent != PAGE or path.suffix not in TYPES or not path.is_file():
        raise Refused(404, "path", f"the page has no part {name[:200]!r}")
    return Response(path.read_bytes(), media_type=TYPES[path.suffix])
