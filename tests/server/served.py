"""Servers to ask: in this process, by clients who may leave at any time, or in a process of their own."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from recap import Pipeline
from recap.server.app import create_app
from recap.server.compare import compare
from recap.server.limits import Limits
from recap.server.worker import Worker
from tests.pipelines.test_pipeline import pipeline

PATIENCE = 60.0
Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]
Event = dict[str, Any]


def few(family: str, **options: Any) -> Pipeline:
    """A small pipeline whose own schedule fits its 16 tokens."""
    pipe = pipeline(family)
    head: Any = {"head_steps": (4, 3)} if family == "mar" else {}
    pipe.options = replace(pipe.options, **{"full": 6, "local": 4, **head, **options})
    return pipe


def slow(steps: int) -> Pipeline:
    """One that takes a while: this many steps of a diffusion head for every token."""
    return few("mar", head_steps=(steps, steps))


def small(**changes: Any) -> Limits:
    return Limits(**{"batch": 4, "queue": 8, "max_images": 8, **changes})


def served(*models: str, pipes: dict[str, Any] | None = None, draws: Any = None, **limits: Any) -> Worker:
    """A worker with small models in memory, the first one by default; all families where none is named."""
    named = {family: few(family) for family in models or ("maskgit", "mar", "mage")}
    return Worker(pipes or named, small(**limits), **draws or {})


@asynccontextmanager
async def opened(worker: Worker, token: str | None = None, **options: Any) -> AsyncIterator[FastAPI]:
    app = create_app(worker, token, page=True, **options)
    async with app.router.lifespan_context(app):
        yield app


def asked(ask: Ask, worker: Worker | None = None, token: str | None = None) -> Any:
    """What `ask` returns when it is given a client of an application."""

    async def run() -> Any:
        async with opened(worker or served("maskgit"), token) as app:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await asyncio.wait_for(ask(client), PATIENCE)

    return asyncio.run(run())


def post(path: str, body: Any, **options: Any) -> Ask:
    return lambda client: client.post(path, json=body, **options)


def told(answer: httpx.Response) -> list[Event]:
    """The events of a whole stream."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def compared(worker: Worker | None = None, **body: Any) -> list[Event]:
    """All events of one comparison."""
    return told(asked(post("/api/compare", body), worker))


def pngs(answer: Any, variant: str = "") -> list[bytes]:
    """The images of an answer, or of a variant in a stream of events."""
    if isinstance(answer, httpx.Response):
        assert answer.status_code == 200, answer.text
        return [base64.b64decode(image["png"]) for image in answer.json()["images"]]
    images = [event for event in answer if event["event"] == "image" and event["variant"] == variant]
    assert [image["image"] for image in images] == list(range(len(images)))
    return [base64.b64decode(image["picture"]) for image in images]


def by_command(*argv: str) -> list[bytes]:
    """The files that the command line writes."""
    from recap.cli import main

    assert main([*argv, "--out", "out"]) == 0
    written = [path.read_bytes() for path in sorted(Path("out").glob("0*.png"))]
    for path in Path("out").glob("*"):
        path.unlink()
    return written


def text(path: str | Path) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


class Visit:
    """A visitor of the page who reads event by event, and may leave."""

    def __init__(self, app: FastAPI, **body: Any) -> None:
        self._sent: asyncio.Queue[Any] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._body: list[bytes] = [json.dumps(body).encode()]
        self._lines: list[bytes] = []
        headers = [(b"host", b"localhost:7860"), (b"content-type", b"application/json")]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/api/compare", "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
        self.task = asyncio.ensure_future(app(scope | {"asgi": {"version": "3.0"}}, self._receive, self._sent.put))

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
    """Holds the thread that draws before every event of a comparison, until it may go on."""

    def __init__(self) -> None:
        self._places = threading.Semaphore(0)
        self.drawn = 0

    def compare(self, *args: Any) -> Iterator[Event]:
        for event in compare(*args):
            if event["event"] != "started":
                assert self._places.acquire(timeout=PATIENCE)
                self.drawn += 1
            yield event

    def open(self, events: int = 10**4) -> None:
        for _ in range(events):
            self._places.release()


@contextmanager
def process(
    command: str, *options: str, token: str | None = None, files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`recap serve` or `recap studio` in a process of its own, which may open so many `files`, and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({} if token is None else {"RECAP_TOKEN": token})
    line = [sys.executable, "-m", "recap", command, "--port", "0", *options]
    if files is not None:
        line = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *line]
    running = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        said = running.stdout.readline()
        found = re.search(r"(?:listening on|open) (http://127\.0\.0\.1:\d+)$", said)
        if found is None:
            running.terminate()
            raise AssertionError(said + running.communicate(timeout=10)[1])
        yield running, found[1]
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=30)


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


async def soon(true: Callable[[], bool]) -> None:
    """Wait until something holds, without holding up the event loop."""
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.005)


def metric(page: str, name: str) -> float:
    """The value of one line of `/metrics`."""
    return next((float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + " ")), 0.0)
