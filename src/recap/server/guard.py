"""What stands before every endpoint: who asks under which name, how much is sent, and a note of how it ended."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.server.limits import ApiError, Limits

OPEN = ("/healthz", "/readyz")  # for those who watch over processes and have no token
CROWD = 4  # times as many requests as images may wait and be drawn: so many may be read at once
OUTCOMES = {401: "unauthorized", 408: "timeout", 429: "full", 499: "left", 503: "closing", 504: "timeout"}
SHOWN = 3  # mistakes of a request that are named at a time
LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Guard:
    """Middleware without a framework's help, so that a client's leaving is still noticed behind it.

    A page of another site can let its own name point to this machine and would then count as the same site; the name
    that its requests carry gives it away. Such a page has no token, so where one is asked for any name will do.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        paths: Mapping[str, set[str]],
        token: str | None = None,
        hosts: Collection[str] = (),
        ended: Callable[[str, str, float], None] = lambda *_: None,
    ) -> None:
        """`paths` are those that there are, with the methods of each; `hosts` are names that the server is reached
        by, beside those of this machine; `ended` is given path, outcome and seconds of every request."""
        self.app, self.limits, self.paths, self.token, self.ended = app, limits, paths, token, ended
        self.hosts = {host.lower() for host in (*LOCAL, *hosts)}
        self.anywhere = any(_is_unspecified(host) for host in hosts)
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
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self.check(scope)
            content = await self.body(scope, receive)
        except ApiError as refused:
            await answer(refused)(scope, receive, noting)
        else:
            await self.app(scope, _replayed(content, receive), noting)
        finally:
            self.bodies -= body
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.ended(path, outcome(status), time.perf_counter() - began)

    def check(self, scope: Scope) -> None:
        """Refuse strangers, other names, and bodies that are no JSON: pages of other sites may send those unasked."""
        if self.token is None:
            self.check_host(_host_of(_header(scope, b"host").decode("latin-1")))
        elif scope["path"] not in OPEN:
            kind, _, given = _header(scope, b"authorization").partition(b" ")
            same = hmac.compare_digest(given.strip(), self.token.encode())
            if kind.lower() != b"bearer" or not same:
                raise ApiError(401, "token", "no valid token came; send the header Authorization: Bearer TOKEN")
        if self.bodies > CROWD * (self.limits.queue + self.limits.batch):
            raise ApiError(
                429, "full", f"{self.bodies} requests are under way at once; come again in a second", retry_after=1
            )
        kind = _header(scope, b"content-type").partition(b";")[0].strip().lower()
        if scope["method"] == "POST" in self.paths.get(scope["path"], ()) and kind != b"application/json":
            shown = kind[:60].decode("latin-1")
            raise ApiError(415, "type", f"the body is {shown!r}; send JSON, with Content-Type: application/json")

    def check_host(self, name: str) -> None:
        """Refuse names that are not ours; where the server listens on all addresses, any address will do."""
        if name not in self.hosts and not (self.anywhere and _is_address(name)):
            raise ApiError(
                421,
                "host",
                f"this server is not called {name[:200]!r}; use its address, or start it with --allow-host",
            )

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body, if it is small enough and comes in time."""
        most = self.limits.max_body
        large = ApiError(
            413, "body", f"the body has more than {most} bytes; send a smaller picture, or fewer at a time"
        )
        length = _header(scope, b"content-length")
        if length.isdigit() and (len(length) > 18 or int(length) > most):
            raise large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(499, "left", "the client left before its request was whole")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError as error:
            raise ApiError(
                408, "slow", f"only {size} bytes came within {self.limits.timeout:g} s; send faster"
            ) from error


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key == name), b"")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, and after it whatever else comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _host_of(text: str) -> str:
    """The name or address in a Host header, without its port."""
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def outcome(status: int) -> str:
    """A status in a word, for counting."""
    if status < 400:
        return "ok"
    return OUTCOMES.get(status) or ("refused" if status < 500 else "failed")


class Escaped(JSONResponse):
    """JSON in ASCII, so that nothing that came can break the answer."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode()


def answer(refused: ApiError) -> JSONResponse:
    """A refusal as JSON."""
    headers: dict[str, str] = {}
    if refused.retry_after is not None:
        headers["Retry-After"] = str(refused.retry_after)
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    content = {"error": {"code": refused.code, "message": refused.message}}
    return Escaped(content, refused.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Let an application say everything that goes wrong in the same form."""
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _elsewhere)
    app.add_exception_handler(Exception, _broken)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer(error)


async def _invalid(_: Request, error: Exception) -> Response:
    """What is wrong with the form of a request: where, what came, what was expected."""
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    if any(mistake["type"] == "json_invalid" for mistake in mistakes):
        reason = mistakes[0].get("ctx", {}).get("error", "")
        return answer(ApiError(400, "json", f"the body is no JSON ({reason}); send an object"))
    said = [
        f"{'.'.join(map(_ascii, mistake['loc']))} is {ascii(mistake.get('input'))[:80]}: {mistake['msg']}"
        for mistake in mistakes[:SHOWN]
    ]
    return answer(ApiError(422, "form", f"{'; '.join(said)}; /openapi.json describes every field"))


def _ascii(part: object) -> str:
    return ascii(part).strip("'")[:80]


async def _elsewhere(_: Request, error: Exception) -> Response:
    """Paths and methods that there are not, and bodies that could not be read."""
    assert isinstance(error, HTTPException)
    messages = {
        400: ("json", "the body could not be read as JSON; send an object, not too deep and without huge numbers"),
        404: ("path", "there is nothing here; /openapi.json lists all paths"),
        405: ("method", "this path does not take this method; /openapi.json lists what it takes"),
    }
    code, message = messages.get(error.status_code, ("refused", str(error.detail)))
    response = answer(ApiError(error.status_code, code, message))
    response.headers.update(error.headers or {})
    return response


async def _broken(_: Request, error: Exception) -> Response:
    return answer(ApiError(500, "failed", "the server failed on this request; its log says why, try again later"))
