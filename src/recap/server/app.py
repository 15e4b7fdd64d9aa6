"""The application: the API, and the page on top of it where it is switched on."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from PIL import Image
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.background import BackgroundTask

import recap
from recap.planning.plan import plan
from recap.server import schema
from recap.server.compare import Comparison
from recap.server.guard import TEXT, ApiError, Guard, handle_errors
from recap.server.record import archive, as_text, encoded
from recap.server.requests import CheckedRequest, PendingRequest, parsed, read
from recap.server.worker import Worker

ABOUT = (
    "Images and texts by grouped decoding; number i of a seed is the one that `recap sample` draws or `recap write` "
    "writes, whoever else asks."
)
FORMS = {"json": "application/json", "png": "image/png", "zip": "application/zip"}
PICTURES = ("/v1/edit", "/api/compare")  # paths that take some
PAGE = Path(__file__).parent / "page"
STREAM = "application/x-ndjson"
BINARY = {"schema": {"type": "string", "format": "binary"}}
FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": schema.Failure, "description": "The request is at fault; 429: come again after `Retry-After`."},
    "5XX": {"model": schema.Failure, "description": "The server is at fault, out of time, or shutting down."},
}
DRAWN: dict[int | str, dict[str, Any]] = {200: {"content": {FORMS["png"]: BINARY, FORMS["zip"]: BINARY}}}


def create_app(
    worker: Worker, token: str | None = None, *, page: bool = False, hosts: Collection[str] = ()
) -> FastAPI:
    """The application around a worker.

    With a `token`, all but the health of the server is for its bearers; without, it is only reached by names of this
    machine and `hosts`. `page` adds the page and what it needs beside the API.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        worker.start()
        yield
        await worker.stop()

    app = FastAPI(
        title="ReCAP",
        version=recap.__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,  # a page that would load its code from elsewhere
        redoc_url=None,
        responses=FAILURES,
        redirect_slashes=False,  # which would lead to wherever the name in a request points
    )
    locked = [Depends(HTTPBearer(auto_error=False))] if token is not None else []

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> Response:
        """Whether the process works; for whoever restarts it, or sends requests here."""
        well = worker.alive and not worker.closing
        return PlainTextResponse("ok") if well else PlainTextResponse("closing", 503)

    app.include_router(_api(worker), dependencies=locked)
    if page:
        app.include_router(_page(worker), dependencies=locked)
        app.mount("/static", PageFiles(directory=PAGE))
    handle_errors(app)
    app.add_middleware(
        Guard, limits=worker.limits, token=token, hosts=hosts, pictures=PICTURES, ended=worker.metrics.ended
    )
    return app


class PageFiles(StaticFiles):
    """What the page consists of, and nothing else: no other name reaches the file system."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return super().lookup_path(path) if path in os.listdir(PAGE) else ("", None)


def _reading(worker: Worker) -> type[APIRoute]:
    """Routes whose bodies are parsed beside the event loop."""

    class Parsed(Request):
        async def json(self) -> Any:
            body = await self.body()
            return await worker.in_side_thread(parsed, body, pictures=len(body) > TEXT)

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            usual = super().get_route_handler()

            async def handler(request: Request) -> Response:
                return await usual(Parsed(request.scope, request.receive))

            return handler

    return Route


def _api(worker: Worker) -> APIRouter:
    """What programs ask for."""
    router = APIRouter(route_class=_reading(worker))

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(generate_latest(worker.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/models")
    async def models() -> schema.Models:
        """What is served, and how much of it at a time."""
        about = [schema.Model.of(name, pipe) for name, pipe in worker.models.items()]
        return schema.Models(
            default=about[0].name, models=about, limits=asdict(worker.limits), version=recap.__version__
        )

    @router.post("/v1/plan")
    async def predict(request: schema.LengthRequest) -> schema.PlanAnswer:
        """What an image or a text with a schedule costs, without drawing it."""
        return await worker.in_side_thread(_cost, worker, request)

    @router.post("/v1/sample", response_model=schema.Drawn, responses=DRAWN)
    async def sample(asked: schema.Sample, request: Request) -> Response:
        """Draw images."""
        return await _drawn(worker, asked, request)

    @router.post("/v1/edit", response_model=schema.Drawn, responses=DRAWN)
    async def edit(asked: schema.Edit, request: Request) -> Response:
        """Draw a part of a picture anew."""
        return await _drawn(worker, asked, request)

    @router.post("/v1/write", response_model=schema.Written)
    async def write(asked: schema.Write, request: Request) -> Response:
        """Write texts."""

        async def written() -> bytes:
            checked = await worker.checked(asked)
            texts = await worker.images(PendingRequest(checked))
            return await worker.in_side_thread(_said, checked, asked, texts)

        body = await worker.while_wanted(written(), _gone(request))
        return Response(body, media_type=FORMS["json"])

    return router


def _page(worker: Worker) -> APIRouter:
    """The page, and what only it needs."""
    router = APIRouter(route_class=_reading(worker))

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @router.post("/api/compare", response_class=Response, responses={200: {"content": {STREAM: {}}}})
    async def compare(asked: schema.Compare, request: Request) -> Response:
        """Draw images, or edit a picture, with reuse and without, and tell of every sub-step."""
        return await _compared(worker, asked, request)

    @router.post("/api/write", response_class=Response, responses={200: {"content": {STREAM: {}}}})
    async def write(asked: schema.Race, request: Request) -> Response:
        """Write texts with reuse and without, and tell of every sub-step."""
        return await _compared(worker, asked, request)

    return router


async def _compared(worker: Worker, asked: schema.Compare | schema.Race, request: Request) -> Response:
    """The events of a comparison."""
    checked = await worker.while_wanted(worker.checked(asked), _gone(request))
    run = Comparison(checked, both=asked.compare)
    worker.submit(run)
    return StreamingResponse(
        run.lines(),
        media_type=STREAM,
        headers={"X-Accel-Buffering": "no"},  # a proxy would hold lines back
        background=BackgroundTask(worker.drop, run),  # also when the visitor leaves
    )


def _cost(worker: Worker, request: schema.PlanRequest) -> schema.PlanAnswer:
    """The cost of one image or text with the schedule that is asked for."""
    asked = read(worker.models, worker.limits, request)
    schedule = replace(asked.works[0].schedule, known=0)
    cost = plan(asked.model, asked.pipe.sized(schedule.tokens), schedule, dtype=asked.pipe.model.dtype)
    return schema.PlanAnswer(
        model=asked.model,
        schedule=asked.evaluations,
        groups=[list(group.sizes) for group in schedule],
        flops=cost.cost.total,
        flops_plain=cost.plain_cost.total,
        cache_bytes=cost.cache_bytes,
        speedup=cost.speedup,
    )


async def _drawn(worker: Worker, asked: schema.Sample | schema.Edit, request: Request) -> Response:
    """The images of a request, in the form that it asks for."""
    if asked.format == "png" and (num := asked.count(asked.first)) > 1:
        message = f'{num} images were asked for as one PNG; ask for "json" or "zip", or for one image'
        raise ApiError(422, "format", message)

    async def drawn() -> bytes:
        checked = await worker.checked(asked)
        images = await worker.images(PendingRequest(checked))
        return await worker.in_side_thread(_packed, asked.format, checked, images)

    body = await worker.while_wanted(drawn(), _gone(request))
    return Response(body, media_type=FORMS[asked.format])


def _packed(form: str, asked: CheckedRequest, images: Sequence[Image.Image]) -> bytes:
    """The body of an answer; the PNGs are the bytes that the command line writes."""
    files = {work: encoded(image) for work, image in zip(asked.works, images, strict=True)}
    if form == "png":
        return files[asked.works[0]]
    if form == "zip":
        return archive({f"{work.index:06d}.png": file for work, file in files.items()})
    pictures = [
        schema.EncodedImage(index=work.index, label=work.label, name=asked.name_of(work), png=as_text(file))
        for work, file in files.items()
    ]
    drawn = schema.Drawn(model=asked.model, seed=asked.request.seed, schedule=asked.evaluations, images=pictures)
    return drawn.model_dump_json().encode()


def _said(asked: CheckedRequest, request: schema.Write, texts: Sequence[str]) -> bytes:
    """The body of an answer of texts."""
    said = [
        schema.WrittenText(index=work.index, prompt=place // request.num, text=text)
        for place, (work, text) in enumerate(zip(asked.works, texts, strict=True))
    ]
    written = schema.Written(model=asked.model, seed=request.seed, schedule=asked.evaluations, texts=said)
    return written.model_dump_json().encode()


async def _gone(request: Request) -> None:
    """Wait for the client to leave."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
