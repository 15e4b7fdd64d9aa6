"""What stands before every endpoint: who asks, how much is sent, and a note of how it ended."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.serving.limits import Limits, Refused
from recap.serving.metrics import Metrics
from recap.serving.schema import refusal

OPEN = ("/healthz", "/readyz")  # for those who watch over processes and have no token
CROWD = 4  # times as many requests as images may wait and be drawn: so many may be read at once
OUTCOMES = {401: "unauthorized", 408: "timeout", 429: "full", 499: "left", 503: "closing", 504: "timeout"}


class Guard:
    """Middleware without a framework's help, so that a client's leaving is still heard behind it."""

    def __init__(
        self, app: ASGIApp, *, limits: Limits, metrics: Metrics, token: str | None, paths: Mapping[str, set[str]]
    ) -> None:
        """`paths` are those that there are, with the methods of each."""
        self.app, self.limits, self.metrics, self.token, self.paths = app, limits, metrics, token, paths
        self.bodies = 0  # requests with one that are under way, which bounds the memory that they take

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, body = time.perf_counter(), 500, scope["method"] == "POST"
        self.bodies += body

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self.check(scope)
            content = await self.body(scope, receive)
        except Refused as refused:
            await answer(refused)(scope, receive, noting)
        else:
            await self.app(scope, replayed(content, receive), noting)
        finally:
            self.bodies -= body
            endpoint = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.add(endpoint=endpoint, outcome=outcome(status))
            if endpoint.startswith("/v1"):
                self.metrics.request_seconds.see(time.perf_counter() - began)

    def check(self, scope: Scope) -> None:
        """Refuse strangers, and bodies that are no JSON: pages of other sites may send those unasked."""
        if self.token is not None and scope["path"] not in OPEN:
            kind, _, given = header(scope, b"authorization").partition(b" ")
            same = hmac.compare_digest(given.strip(), self.token.encode())
            if kind.lower() != b"bearer" or not same:
                raise Refused(401, "token", "no valid token came; send the header Authorization: Bearer TOKEN")
        if self.bodies > CROWD * (self.limits.queue + self.limits.batch):
            raise Refused(
                429, "full", f"{self.bodies} requests are under way at once; come again in a second", retry_after=1
            )
        kind = header(scope, b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" in self.paths.get(scope["path"], ()) and kind != b"application/json":
            shown = kind[:60].decode("latin-1")
            raise Refused(415, "type", f"the body is {shown!r}; send JSON, with Content-Type: application/json")

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, if it is small enough and comes in time."""
        most = self.limits.max_body
        large = Refused(
            413, "body", f"the body has more than {most} bytes; send a smaller picture, or fewer at a time"
        )
        length = header(scope, b"content-length")
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(499, "left", "the client left before its request was whole")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            raise Refused(
                408, "slow", f"only {size} bytes came within {self.limits.timeout:g} s; send faster"
            ) from error


def header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, and after it whatever else comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def outcome(status: int) -> str:
    if status < 400:
        return "ok"
    return OUTCOMES.get(status) or ("refused" if status < 500 else "failed")


def answer(refused: Refused) -> JSONResponse:
    """A refusal as JSON; letters beyond ASCII are escaped, so that nothing that came can break the answer."""
    headers: dict[str, str] = {}
    if refused.retry_after is not None:
        headers["Retry-After"] = str(refused.retry_after)
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Escaped(refusal(refused.code, refused.message), refused.status, headers)


class Escaped(JSONResponse):
    """JSON in ASCII."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()
