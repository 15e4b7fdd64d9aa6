"""The application: the API, and the page on top of it where it is switched on."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from fastapi.security import HTTPBearer
from PIL import Image
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.background import BackgroundTask
from starlette.routing import Route

import recap
from recap.pipelines import Pipeline
from recap.pipelines.editing import starts_of
from recap.planning.plan import plan
from recap.runs.works import Start
from recap.server import schema
from recap.server.compare import Comparison, Event
from recap.server.files import TYPES, Upload, archive, png
from recap.server.guard import Escaped, Guard, handle_errors
from recap.server.limits import ApiError, Limits, picture
from recap.server.models import Asked, Entry
from recap.server.service import Service
from recap.server.worker import PendingImages
from recap.view.images import box_mask, fit

ABOUT = "Images by grouped decoding; image i of a seed is the one that `recap sample` draws, whoever else asks."
FORMS = {"json": "application/json", "png": "image/png", "zip": "application/zip"}
PAGE = Path(__file__).parent / "page"
PARTS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}
STREAM = "application/x-ndjson"
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": schema.Failure, "description": text}
    for status, text in {
        400: "No JSON.",
        401: "No valid token.",
        408: "Sent too slowly.",
        413: "Too large.",
        415: "No JSON by its type.",
        421: "A name that is not the server's.",
        422: "Not possible.",
        429: "The queue is full; `Retry-After` says when to come again.",
        500: "A fault of the server.",
        503: "Shutting down.",
        504: "Out of time.",
    }.items()
}
DRAWN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The images: JSON with base64 PNGs, one PNG, or a zip of PNGs.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/png", FORMS["zip"])},
    }
}


def create_app(
    service: Service, token: str | None = None, *, page: bool = False, hosts: Collection[str] = ()
) -> FastAPI:
    """The application around a service.

    With a `token`, all but the health of the server is for its bearers; without, it is only reached by names of this
    machine and `hosts`. `page` adds the page and what it needs beside the API.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="ReCAP",
        version=recap.__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,  # a page that would load its code from elsewhere
        redoc_url=None,
    )
    locked = [Depends(HTTPBearer(auto_error=False))] if token is not None else []
    health, *others = routers = [_health(service), _api(service), *([_page(service)] if page else [])]
    app.include_router(health)
    for router in others:
        app.include_router(router, dependencies=locked)
    handle_errors(app)
    routes = [route for routes in (app, *routers) for route in routes.routes if isinstance(route, Route)]
    paths = {route.path: set(route.methods or ()) for route in routes}
    app.add_middleware(
        Guard, limits=service.limits, paths=paths, token=token, hosts=hosts, ended=service.metrics.ended
    )
    return app


def _health(service: Service) -> APIRouter:
    """For those who watch over the process."""
    router = APIRouter(responses={421: FAILURES[421], 429: FAILURES[429], 503: {"model": schema.State}})

    @router.get("/healthz", response_model=schema.State)
    async def healthz() -> Response:
        """Whether the process works; for whoever restarts it."""
        return _state("ok" if service.alive else "broken")

    @router.get("/readyz", response_model=schema.State)
    async def readyz() -> Response:
        """Whether it takes requests; for whoever sends them here."""
        return _state("ready" if service.ready else "closing" if service.alive else "broken")

    return router


def _api(service: Service) -> APIRouter:
    """What programs ask for."""
    router = APIRouter(responses=FAILURES)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/models")
    async def models() -> schema.Models:
        """What is served, and how much of it at a time."""
        limits = {name: getattr(service.limits, name) for name in Limits.__slots__}
        entries = service.models.entries.values()
        about = [schema.Model(**entry.about()) for entry in entries]
        return schema.Models(default=service.models.default, models=about, limits=limits, version=recap.__version__)

    @router.post("/v1/plan")
    async def predict(asked: schema.Plan) -> schema.Cost:
        """What an image with a schedule costs, without drawing it."""
        return await service.run_in_thread(_cost, service, asked)

    @router.post("/v1/sample", response_model=schema.Drawn, responses=DRAWN)
    async def sample(asked: schema.Sample, request: Request) -> Response:
        """Draw images."""
        return await _drawn(service, asked, request)

    @router.post("/v1/edit", response_model=schema.Drawn, responses=DRAWN)
    async def edit(asked: schema.Edit, request: Request) -> Response:
        """Draw a part of a picture anew."""
        return await _drawn(service, asked, request)

    return router


def _page(service: Service) -> APIRouter:
    """The page, and what only it needs."""
    router = APIRouter(responses=FAILURES | {404: {"model": schema.Failure, "description": "Nothing here."}})

    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        """The page."""
        return _part("index.html")

    @router.get("/static/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        """A part of the page."""
        return _part(name)

    @router.post("/api/compare", response_class=Response, responses={200: {"content": {STREAM: {}}}})
    async def compare(asked: schema.Compare) -> Response:
        """Draw images, or edit a picture, with reuse and without, and tell of every sub-step."""
        service.admit(asked.count())
        entry, works, upload = await service.run_in_thread(_asked, service, asked, 0)
        run = Comparison(
            entry,
            works,
            both=asked.compare,
            drift=asked.drift,
            labelled=asked.labels is not None,
            upload=upload,
            keep=service.kept.add,
        )
        service.worker.submit(run)
        return StreamingResponse(
            _lines(run.events()),
            media_type=STREAM,
            headers={"X-Accel-Buffering": "no"},  # a proxy would hold lines back
            background=BackgroundTask(service.worker.drop, run),  # also when the visitor leaves
        )

    @router.get(
        "/api/runs/{run}/{name}",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in TYPES.values()}}},
    )
    async def kept(run: str, name: str) -> Response:
        """A finished comparison as a file."""
        record = service.kept.find(run)
        if record is None or name not in TYPES:
            raise ApiError(
                404,
                "run",
                f"of this run there is no {name[:60]!r}: only the latest finished runs are kept, "
                f"as {', '.join(TYPES)}; draw it again",
            )
        content = await service.run_in_thread(record.file, name)
        disposition = f'attachment; filename="recap-{run}-{name}"'
        return Response(content, media_type=TYPES[name], headers={"Content-Disposition": disposition})

    return router


def _state(status: str) -> Response:
    return Escaped({"status": status}, 200 if status in ("ok", "ready") else 503)


def _part(name: str) -> Response:
    """A file of the page, if there is one."""
    path = PAGE / name
    if path.parent != PAGE or path.suffix not in PARTS or not path.is_file():
        raise ApiError(404, "path", f"the page has no part {name[:200]!r}")
    return Response(path.read_bytes(), media_type=PARTS[path.suffix])


def _cost(service: Service, asked: schema.Plan) -> schema.Cost:
    """The cost of one image with the schedule that is asked for."""
    entry = service.models.entry(asked.model)
    works = entry.asked(service.limits, asked.options(), labels=None, num=1)
    schedule, config = works.works[0].schedule, entry.blank.model.config
    cost = plan(entry.name, config, schedule, dtype=entry.blank.model.dtype)
    return schema.Cost(
        model=entry.name,
        schedule=schema.Evaluations(**works.evaluations),
        groups=[list(group.sizes) for group in schedule],
        flops=cost.cost.total,
        flops_full=cost.cost.full,
        flops_local=cost.cost.local,
        flops_head=cost.cost.head,
        flops_plain=cost.plain_cost.total,
        cache_bytes=cost.cache_bytes,
        speedup=cost.speedup,
    )


def _asked(service: Service, asked: schema.Draw, first: int) -> tuple[Entry, Asked, Upload | None]:
    """The images that a request means, everything checked that can be checked before it waits."""
    limits, entry = service.limits, service.models.entry(asked.model)
    options, num = asked.options(), asked.count(first)
    limits.check(num, options)
    start = upload = None
    if isinstance(asked, schema.Redraw) and (asked.image is not None or asked.mask is not None):
        start, upload = _start(entry.blank, asked, limits)
    works = entry.asked(
        limits, options, labels=asked.given_labels(), num=num, seed=asked.seed, first=first, start=start
    )
    return entry, works, upload


def _start(pipe: Pipeline, asked: schema.Redraw, limits: Limits) -> tuple[Start, Upload]:
    """A picture in the model's size, and what to draw anew: the white of a mask, or a box of the model's pixels."""
    side, white, mask = pipe.side, None, None
    if (asked.mask is None) == (asked.redraw is None) or asked.image is None:
        raise ValueError('say what to draw anew of an "image" with either "mask" or "redraw", not both or neither')
    if asked.mask is not None:
        white, mask = picture(asked.mask, "mask", limits.max_pixels)
    image, file = picture(asked.image, "image", limits.max_pixels)
    if white is not None and white.size != image.size:
        raise ValueError(
            f"the mask is {white.width} x {white.height} pixels but the image {image.width} x {image.height}; "
            f"make them of one size"
        )
    if asked.fit:
        image, white = fit(image, side), None if white is None else fit(white, side, mask=True)
    if image.size != (side, side):
        raise ValueError(
            f"the image is {image.width} x {image.height} pixels but this model draws {side} x {side}; "
            f'crop and scale it first, or say "fit": true'
        )
    white = box_mask(side, *asked.redraw or ()) if white is None else white.convert("L")
    start = starts_of(pipe, image, white, asked.paste).of(1)[0]
    return start, Upload(file, mask, asked.redraw, asked.fit, asked.paste)


async def _drawn(service: Service, asked: schema.Sample | schema.Edit, request: Request) -> Response:
    """The images of a request, in the form that it asks for."""
    limits, num = service.limits, asked.count(asked.first)
    deadline = asyncio.get_running_loop().time() + min(asked.timeout or limits.timeout, limits.timeout)
    service.admit(num)
    accepted = request.headers.get("accept", "")
    form: str = asked.format or next((form for form, kind in FORMS.items() if kind in accepted), "json")
    if form == "png" and num > 1:
        raise ApiError(
            422, "format", f'{num} images were asked for as one PNG; ask for "json" or "zip", or for one image'
        )
    entry, works, _ = await service.run_in_thread(_asked, service, asked, asked.first)
    images = await service.images(PendingImages(entry, works.works), deadline, _gone(request))
    body = await service.run_in_thread(_packed, form, entry, works, images)
    return Response(body, media_type=FORMS[form])


def _packed(form: str, entry: Entry, asked: Asked, images: Sequence[Image.Image]) -> bytes:
    """The body of an answer; the PNGs are the bytes that the command line writes."""
    files = [png(image) for image in images]
    if form == "png":
        return files[0]
    if form == "zip":
        pairs = zip(asked.works, files, strict=True)
        return archive({f"{work.index:06d}.png": file for work, file in pairs})
    names = entry.blank.class_names
    content = {
        "model": entry.name,
        "seed": asked.works[0].seed,
        "schedule": asked.evaluations,
        "images": [
            {
                "index": work.index,
                "label": work.label,
                "name": None if names is None or work.label is None else names[work.label],
                "png": base64.b64encode(file).decode(),
            }
            for work, file in zip(asked.works, files, strict=True)
        ],
    }
    return json.dumps(content).encode()


def _gone(request: Request) -> Callable[[], Awaitable[None]]:
    """Waits for the client to leave."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return left


async def _lines(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    """Events as JSON in ASCII, one a line, their pictures as base64 text."""
    async for event in events:
        yield json.dumps(event, default=_text, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
