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
TEXT = 2**17  # bytes of a request without its pictures
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
    that its requests carry gives it away.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        token: str | None = None,
        hosts: Collection[str] = (),
        pictures: Collection[str] = (),
        ended: Callable[[str, int, float], None] = lambda *_: None,
    ) -> None:
        """`hosts` are names that the server is reached by, beside those of this machine, or "*" for any; `pictures`
        are paths that take pictures; `ended` is given path, status and seconds of every request."""
        self.app, self.limits, self.token, self.ended, self.pictures = app, limits, token, ended, pictures
        self.hosts = {host.lower() for host in (*LOCAL, *hosts)}
        self.anywhere = any(_is_address(host) and ipaddress.ip_address(host).is_unspecified for host in hosts)
        self.held = 0  # bytes of pictures in requests that are not computed yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500
        headers = Headers(scope=scope)
        body = Body(self, scope["path"], headers, receive)

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            elif not message.get("more_body", False):
                body.release()  # all is computed; how long its client takes to read it is no matter
            await send(message)

        try:
            self.check(scope["path"], headers)
            await self.app(scope, body.receive, noting)
        except ApiError as refused:
            await answer(refused)(scope, receive, noting)
        finally:
            body.release()
            path = getattr(scope.get("route"), "path", "other")
            self.ended(path, status, time.perf_counter() - began)

    def check(self, path: str, headers: Headers) -> None:
        """Refuse strangers and other names."""
        name = _host_of(headers.get("host", ""))
        if "*" not in self.hosts and name not in self.hosts and not (self.anywhere and _is_address(name)):
            raise ApiError(
                421,
                "host",
                f"this server is not called {name[:200]!r}; use its address, or start it with --allow-host",
            )
        if self.token is not None and path != OPEN:
            kind, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("latin-1"), self.token.encode())
            if kind.lower() != "bearer" or not same:
                message = "no valid token came; send the header Authorization: Bearer TOKEN"
                raise ApiError(401, "token", message, {"WWW-Authenticate": "Bearer"})


class Body:
    """What comes with a request, as long as it is JSON (pages of other sites may send other types), small, in time,
    and asked for: nothing is read before a path and a method that take it are found."""

    def __init__(self, guard: Guard, path: str, headers: Headers, receive: Receive) -> None:
        self.guard, self._receive = guard, receive
        self.kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.most = guard.limits.max_body if path in guard.pictures else min(TEXT, guard.limits.max_body)
        length = headers.get("content-length", "0")
        self.said = int(length) if length.isascii() and length.isdigit() else 0
        self.deadline = asyncio.get_running_loop().time() + guard.limits.reading
        self.size, self.held, self.whole = 0, 0, False

    async def receive(self) -> Message:
        if self.whole:
            return await self._receive()
        self.check(self.said)
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self._receive()
        except TimeoutError as error:
            seconds = self.guard.limits.reading
            raise ApiError(408, "slow", f"only {self.size} bytes came within {seconds:g} s; send faster") from error
        if message["type"] == "http.disconnect":
            raise ApiError(499, "left", "the client left before its request was whole")
        self.size += len(message.get("body", b""))
        self.whole = not message.get("more_body", False)
        self.check(self.size)
        self.hold()
        return message

    def check(self, size: int) -> None:
        """Refuse a body of this size, be it said or come."""
        if size and self.kind != "application/json":
            raise ApiError(
                415, "type", f"the body is {self.kind[:60]!r}; send JSON, with Content-Type: application/json"
            )
        if size > self.most:
            raise ApiError(
                413, "body", f"the body has more than {self.most} bytes; send a smaller picture, or fewer at a time"
            )

    def hold(self) -> None:
        """A place for the pictures that came, or a refusal; what is small has one anyway."""
        more = max(0, self.size - TEXT) - self.held
        if more > 0 and self.guard.held + more > self.guard.limits.max_held:
            message = f"{self.guard.held} bytes of pictures are under way at once; come again in a second"
            raise ApiError(429, "full", message, {"Retry-After": "1"})
        self.guard.held += max(0, more)
        self.held += max(0, more)

    def release(self) -> None:
        self.guard.held -= self.held
        self.held = 0


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
        said = [
            f"{'.'.join(map(str, mistake['loc'])):.200} is {mistake.get('input')!r:.80}: {mistake['msg']}"
            for mistake in mistakes[:SHOWN]
        ]
        return answer(ApiError(422, "form", f"{'; '.join(said)}; /openapi.json describes every field"))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        return answer(ApiError(500, "failed", "the server failed on this request; its log says why, try again later"))
