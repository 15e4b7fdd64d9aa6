"""Events as they come, one JSON object a line; a visitor who leaves takes the run along."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from recap.studio.race import Event
from recap.studio.runs import Run, Runs

CONTENT_TYPE = "application/x-ndjson"


class Streamed(Response):
    """The events of a run, sent while it goes on."""

    media_type = CONTENT_TYPE

    def __init__(self, run: Run, runs: Runs) -> None:
        super().__init__(headers={"X-Accel-Buffering": "no"})  # a proxy would hold lines back
        del self.headers["content-length"]
        self.run, self.runs = run, runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self.runs.drop(self.run)
            sending.cancel()
            leaving.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for events in self.run.events():
            body = b"".join(map(line, events))
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def left(receive: Receive) -> None:
    """Waits for the visitor to leave."""
    while (await receive())["type"] != "http.disconnect":
        pass


def line(event: Event) -> bytes:
    """An event as JSON in ASCII, its pictures as base64 text."""
    return json.dumps(event, default=text, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def text(value: Any) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()
