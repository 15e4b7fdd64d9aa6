"""Servers to ask: in this process, or in one of their own."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from recap import Pipeline
from recap.core.presets import Sampling
from recap.serving.app import create_app
from recap.serving.limits import Limits
from recap.serving.service import Service
from tests.test_pipeline import pipeline

Ask = Callable[[httpx.AsyncClient], Awaitable[Any]]


def few(family: str) -> Pipeline:
    """A small pipeline whose own schedule fits its 16 tokens."""
    pipe = pipeline(family)
    head: Any = {"head_steps": (4, 3)} if family == "mar" else {}
    pipe.sampling = Sampling(pipe.sampling.preset, full=6, local=4, **head)
    return pipe


@asynccontextmanager
async def client(service: Service, token: str | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(service, token)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    asking = httpx.AsyncClient(transport=transport, base_url="http://test", **options)
    async with app.router.lifespan_context(app), asking:
        yield asking


def asked(ask: Ask, service: Service | None = None, token: str | None = None, **options: Any) -> Any:
    """What `ask` returns when it is given a client of a service."""

    async def run() -> Any:
        async with client(service or Service(few("maskgit"), "tiny"), token, **options) as asking:
            return await asyncio.wait_for(ask(asking), 60)

    return asyncio.run(run())


def small(**changes: Any) -> Limits:
    return Limits(**{"batch": 4, "queue": 8, "max_images": 8, **changes})


@contextmanager
def process(model: Path, *options: str, token: str | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`recap serve` in a process of its own, and its address."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if token is not None:
        environment["RECAP_TOKEN"] = token
    command = [sys.executable, "-m", "recap", "serve", "--model", str(model), "--port", "0", *options]
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=model.parent
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"listening on (http://127\.0\.0\.1:\d+)$", line)
        assert found, line + (running.communicate(timeout=10)[1] if running.poll() is not None else "")
        until(lambda: answers(found[1]))
        yield running, found[1]
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=30)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


def metric(text: str, name: str) -> float:
    """The value of one line of `/metrics`."""
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)
