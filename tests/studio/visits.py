"""Studios to visit: in this process, by visitors who may leave at any time."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from recap import Pipeline
from recap.studio.app import Studio, create_app
from recap.studio.limits import Limits
from recap.studio.models import Load, Shelf
from recap.studio.race import race
from tests.serving.served import few
from tests.test_pipeline import FAMILIES

PATIENCE = 60.0
Event = dict[str, Any]


def folders(place: Path) -> dict[str, Path]:
    """Small models with random weights, one of each family."""
    for family in FAMILIES:
        few(family).save_pretrained(place / family)
    return {family: place / family for family in ("maskgit", "mar", "mage")}


def studio(models: dict[str, Path], load: Load = Pipeline.from_pretrained, **limits: Any) -> Studio:
    allowed = Limits(**limits)
    return Studio(Shelf(models, load, allowed), allowed)


@asynccontextmanager
async def opened(place: Studio, **options: Any) -> AsyncIterator[FastAPI]:
    app = create_app(place, **options)
    async with app.router.lifespan_context(app):
        yield app


def asked(place: Studio, ask: Callable[[httpx.AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """What `ask` returns when it is given a client."""

    async def run() -> Any:
        async with opened(place) as app:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options) as client:
                return await asyncio.wait_for(ask(client), PATIENCE)

    return asyncio.run(run())


def told(answer: httpx.Response) -> list[Event]:
    """The events of a whole stream."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def drawn(place: Studio, path: str = "/api/generate", **body: Any) -> list[Event]:
    """All events of one run."""
    return told(asked(place, lambda client: client.post(path, json=body)))


def pngs(events: list[Event], pane: str) -> list[bytes]:
    images = [event for event in events if event["event"] == "image" and event["pane"] == pane]
    assert [image["image"] for image in images] == list(range(len(images)))
    return [base64.b64decode(image["picture"]) for image in images]


class Visit:
    """A visitor who reads event by event, and may leave."""

    def __init__(self, app: FastAPI, path: str = "/api/generate", **body: Any) -> None:
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._body: list[bytes] = [json.dumps(body).encode()]
        self._lines: list[bytes] = []
        headers = [(b"host", b"localhost:7860"), (b"content-type", b"application/json")]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": headers,
            "query_string": b"",
        }
        scope |= {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": ""}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._sent.put))

    async def _receive(self) -> Any:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def start(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer."""
        message = await asyncio.wait_for(self._sent.get(), PATIENCE)
        return message["status"], {key.decode(): value.decode() for key, value in message["headers"]}

    async def event(self) -> Event | None:
        """The next event; None once the stream has ended."""
        while not self._lines:
            message = await asyncio.wait_for(self._sent.get(), PATIENCE)
            if message["type"] == "http.response.start":
                assert message["status"] == 200
                continue
            self._lines += message["body"].splitlines()
            if not message.get("more_body", False):
                break
        return json.loads(self._lines.pop(0)) if self._lines else None

    async def rest(self) -> list[Event]:
        events = []
        while (event := await self.event()) is not None:
            events.append(event)
        return events

    async def leave(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, PATIENCE)


class Gate:
    """Holds the thread that draws before every event, until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._places = threading.Semaphore(0)
        self.drawn = 0

        def gated(panes: Any) -> Iterator[Event]:
            for event in race(panes):
                assert self._places.acquire(timeout=PATIENCE)
                self.drawn += 1
                yield event

        monkeypatch.setattr("recap.studio.runs.race", gated)

    def open(self, events: int = 10**6) -> None:
        for _ in range(min(events, 10**4)):
            self._places.release()


async def until(true: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.005)
