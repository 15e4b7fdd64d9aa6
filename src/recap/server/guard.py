"""What stands before every endpoint: who asks under which name, how much is sent, and how a refusal is said."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import time
from collections.abc import Callable, Collection

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.server.limits import Limits

OPEN = "/healthz"  # for those who watch over processes and have no token
CROWD = 4  # times as many requests as images may wait and be drawn: so many may be read at once
SHOWN = 3  # mistakes of a request that are named at a time
LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
USUAL = {  # what a framework refuses by itself
    400: ("json", "the body could not be read as JSON; send an object, not too deep and without huge numbers"),
    404: ("path", "there is nothing here; /openapi.json lists all paths"),
    405: ("method", "this path does not take this method; /openapi.json lists what it takes"),
}


class ApiError(HTTPException):
    """An answer that is no image: its status, a word for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code


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
        token: str | None = None,
        hosts: Collection[str] = (),
        ended: Callable[[str, int, float], None] = lambda *_: None,
    ) -> None:
        """`hosts` are names that the server is reached by, beside those of this machine; `ended` is given path,
        status and seconds of every request."""
        self.app, self.limits, self.token, self.ended = app, limits, token, ended
        self.hosts = {host.lower() for host in (*LOCAL, *hosts)}
        self.anywhere = any(_is_address(host) and ipaddress.ip_address(host).is_unspecified for host in hosts)
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
            headers = Headers(scope=scope)
            self.check(scope["path"], headers)
            await self.app(scope, self.limited(headers, receive), noting)
        except ApiError as refused:
            await answer(refused)(scope, receive, noting)
        finally:
            self.bodies -= body
            path = getattr(scope.get("route"), "path", "other")
            self.ended(path, status, time.perf_counter() - began)

    def check(self, path: str, headers: Headers) -> None:
        """Refuse strangers, other names, and a crowd."""
        if self.token is None:
            name = _host_of(headers.get("host", ""))
            if name not in self.hosts and not (self.anywhere and _is_address(name)):
                raise ApiError(
                    421,
                    "host",
                    f"this server is not called {name[:200]!r}; use its address, or start it with --allow-host",
                )
        elif path != OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())
            if kind.lower() != "bearer" or not same:
                message = "no valid token came; send the header Authorization: Bearer TOKEN"
                raise ApiError(401, "token", message, {"WWW-Authenticate": "Bearer"})
        if self.bodies > CROWD * (self.limits.queue + self.limits.batch):
            message = f"{self.bodies} requests are under way at once; come again in a second"
            raise ApiError(429, "full", message, {"Retry-After": "1"})

    def limited(self, headers: Headers, receive: Receive) -> Receive:
        """What comes, as long as it is JSON (pages of other sites may send other types), small, and in time."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        most, seconds = self.limits.max_body, self.limits.timeout
        deadline = asyncio.get_running_loop().time() + seconds
        size, whole = 0, False

        async def checked() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError as error:
                raise ApiError(408, "slow", f"only {size} bytes came within {seconds:g} s; send faster") from error
            if message["type"] == "http.disconnect":
                raise ApiError(499, "left", "the client left before its request was whole")
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size and kind != "application/json":
                raise ApiError(
                    415, "type", f"the body is {kind[:60]!r}; send JSON, with Content-Type: application/json"
                )
            if size > most:
                raise ApiError(
                    413, "body", f"the body has more than {most} bytes; send a smaller picture, or fewer at a time"
                )
            return message

        return checked


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


def answer(refused: ApiError) -> Response:
    """A refusal as JSON, in ASCII so that nothing that came can break it."""
    content = json.dumps({"error": {"code": refused.code, "message": refused.detail}})
    return Response(content, refused.status_code, refused.headers, "application/json")


def handle_errors(app: FastAPI) -> None:
    """Let an application say everything that goes wrong in the same form."""

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        if isinstance(error, ApiError):
            return answer(error)
        code, message = USUAL.get(error.status_code, ("refused", str(error.detail)))
        return answer(ApiError(error.status_code, code, message, dict(error.headers or {})))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        """What is wrong with the form of a request: where, what came, what was expected."""
        mistakes = error.errors()
        if mistakes[0]["type"] == "json_invalid":
            reason = mistakes[0]["ctx"]["error"]
            return answer(ApiError(400, "json", f"the body is no JSON ({reason}); send an object"))
        said = [
            f"{'.'.join(map(str, mistake['loc'])):.200} is {mistake.get('input')!r:.80}: {mistake['msg']}"
            for mistake in mistakes[:SHOWN]
        ]
        return answer(ApiError(422, "form", f"{'; '.join(said)}; /openapi.json describes every field"))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return answer(ApiError(500, "failed", "the server failed on this request; its log says why, try again later"))
