"""The endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from fastapi.security import HTTPBearer
from starlette.routing import Route

import recap
from recap.models.zoo import family_of
from recap.planning import plan
from recap.serving import schema
from recap.serving.answers import TYPES, form_of, numbers, packed
from recap.serving.errors import handle_errors
from recap.serving.guard import Escaped, Guard
from recap.serving.limits import Refused, picture
from recap.serving.metrics import CONTENT_TYPE
from recap.serving.openapi import DRAWN, METRICS, about, examples, failures, tightened
from recap.serving.service import Service
from recap.serving.work import Work, labels_of, schedule_of, start_of

ALL = (400, 406, 408, 413, 415, 422, 429, 500, 503, 504)


def create_app(service: Service, token: str | None = None) -> FastAPI:
    """The application around a service; with a `token`, all but the health of the server is for its bearers."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="recap serve",
        version=recap.__version__,
        description=about(service.name),
        lifespan=lifespan,
        docs_url=None,  # a page that would load its code from elsewhere
        redoc_url=None,
    )
    locked = [Depends(HTTPBearer(auto_error=False))] if token is not None else []
    no = failures(token is not None)

    @app.get("/healthz", response_model=schema.State, responses={**examples({"status": "ok"}), **no(503)})
    async def healthz() -> Response:
        """Whether the process works; for whoever restarts it."""
        return state("ok" if service.alive else "broken")

    @app.get("/readyz", response_model=schema.State, responses={**examples({"status": "ready"}), **no(503)})
    async def readyz() -> Response:
        """Whether it takes requests; for whoever sends them here."""
        return state("ready" if service.ready else "closing" if service.alive else "broken")

    @app.get("/metrics", response_class=PlainTextResponse, dependencies=locked, responses={200: METRICS, **no()})
    async def metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get(
        "/v1/models",
        response_model=schema.Models,
        dependencies=locked,
        responses={**examples({"models": [described(service)]}), **no()},
    )
    async def models() -> Response:
        """What is served."""
        return Escaped({"models": [described(service)]})

    @app.post(
        "/v1/plan",
        response_model=schema.Cost,
        dependencies=locked,
        responses={**examples(cost(service, schema.Plan())), **no(400, 408, 413, 415, 422, 429)},
    )
    async def predict(asked: Annotated[schema.Plan, Body()]) -> Response:
        """What an image with a schedule costs, without drawing it."""
        return Escaped(await service.aside(cost, service, asked))

    @app.post("/v1/sample", response_model=schema.Drawn, dependencies=locked, responses={200: DRAWN, **no(*ALL)})
    async def sample(asked: Annotated[schema.Sample, Body()], request: Request) -> Response:
        """Draw images."""
        return await drawn(service, asked, request, sampled)

    @app.post("/v1/edit", response_model=schema.Drawn, dependencies=locked, responses={200: DRAWN, **no(*ALL)})
    async def edit(asked: Annotated[schema.Edit, Body()], request: Request) -> Response:
        """Draw a part of a picture anew."""
        return await drawn(service, asked, request, edited)

    handle_errors(app)
    paths = {route.path: set(route.methods or ()) for route in app.routes if isinstance(route, Route)}
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, token=token, paths=paths)
    drawn_by, steps = service.pipe.model, min(service.limits.max_steps, service.pipe.model.num_tokens)
    most = {"num": service.limits.max_images, "labels": max(drawn_by.classes - 1, 0), "redraw": service.pipe.side}
    most |= dict.fromkeys(("full", "local", "total", "plain", "chain"), steps)
    plain = app.openapi
    app.openapi = lambda: tightened(plain(), most)  # type: ignore[method-assign]
    return app


def state(status: str) -> Response:
    return Escaped({"status": status}, 200 if status in ("ok", "ready") else 503)


def described(service: Service) -> dict[str, Any]:
    """What `/v1/models` says about the model."""
    pipe = service.pipe
    return {
        "name": service.name,
        "family": family_of(pipe.model.config).name,
        "classes": pipe.model.classes,
        "class_names": None if pipe.class_names is None else list(pipe.class_names),
        "image_size": pipe.side,
        "tokens": pipe.model.num_tokens,
        "device": str(pipe.device),
        "dtype": str(pipe.model.dtype).removeprefix("torch."),
        "engine": pipe.engine,
        "schedule": numbers(service.schedule),
        "limits": asdict(service.limits),
    }


def cost(service: Service, asked: schema.Plan) -> dict[str, Any]:
    """The cost of one image with the schedule that is asked for."""
    pipe = service.pipe
    schedule = schedule_of(pipe, asked.wish(), service.limits)
    return plan(
        service.name, pipe.model.config, schedule, setting=pipe.sampling.preset, dtype=pipe.model.dtype
    ).as_dict()


def sampled(service: Service, asked: schema.Sample) -> list[Work]:
    """The images of a request to sample."""
    schedule = schedule_of(service.pipe, asked.wish(), service.limits)
    labels = labels_of(service.pipe, asked.label_list(), asked.first, asked.count())
    return [Work(schedule, label, asked.seed, asked.first + number) for number, label in enumerate(labels)]


def edited(service: Service, asked: schema.Sample) -> list[Work]:
    """The versions of a request to edit."""
    assert isinstance(asked, schema.Edit)
    pipe, most = service.pipe, service.limits.max_pixels
    if pipe.model.classes and asked.labels is None:
        raise ValueError(f"this model draws {pipe.model.classes} classes; say with labels what is to be drawn")
    labels = labels_of(pipe, asked.label_list(), asked.first, asked.count())
    mask = None if asked.mask is None else picture(asked.mask, "mask", most)
    image = picture(asked.image, "image", most)
    start = start_of(pipe, image, mask, asked.redraw, fitted=asked.fit, paste=asked.paste)
    known = int((~start.masked).sum())
    schedule = schedule_of(pipe, asked.wish(), service.limits, known)
    return [Work(schedule, label, asked.seed, asked.first + number, start) for number, label in enumerate(labels)]


async def drawn(
    service: Service,
    asked: schema.Sample,
    request: Request,
    prepared: Callable[[Service, schema.Sample], list[Work]],
) -> Response:
    """The images of a request, in the form that it asks for."""
    limits, num = service.limits, asked.count()
    deadline = asyncio.get_running_loop().time() + min(asked.timeout or limits.timeout, limits.timeout)
    if num > limits.max_images:
        raise Refused(
            422, "limit", f"{num} images were asked for, but {limits.max_images} are allowed at a time; ask for fewer"
        )
    form = form_of(asked.format, request.headers.get("accept"), num)
    service.batcher.check_room(num)  # before any picture is unpacked
    works = await service.aside(prepared, service, asked)
    images = await service.images(works, deadline, gone(request))
    names = service.pipe.class_names
    body = await service.aside(packed, form, service.name, works[0].schedule, works, images, names)
    return Response(body, media_type=TYPES[form])


def gone(request: Request) -> Callable[[], Awaitable[None]]:
    """Waits for the client to leave."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return left
