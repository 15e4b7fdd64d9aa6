"""What every answer says to browsers, and under which names the server answers at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recap.serving.guard import answer, header
from recap.serving.limits import Refused

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
LOCAL = ("localhost", "127.0.0.1", "::1")


class Safety:
    """Middleware: headers on every answer, and a refusal for names that are not ours.

    A page of another site can let its own name point to this machine and would then count as the same site; the name
    that its requests carry tells.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        """`hosts` are the names and addresses that it is reached by, beside those of this machine itself."""
        self.app = app
        self.hosts = {host.lower() for host in (*LOCAL, *hosts)}
        self.anywhere = any(is_unspecified(host) for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        name = host_of(header(scope, b"host").decode("latin-1"))
        if self.known(name):
            await self.app(scope, receive, safely)
            return
        refused = Refused(
            421, "host", f"this server is not called {name[:200]!r}; use its address, or start it with --allow-host"
        )
        await answer(refused)(scope, receive, safely)

    def known(self, name: str) -> bool:
        """Whether the server is reached by this name; where it listens on all addresses, any address will do."""
        return name in self.hosts or (self.anywhere and is_address(name))


def host_of(text: str) -> str:
    """The name or address in a Host header, without its port."""
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_unspecified(host: str) -> bool:
    return is_address(host) and ipaddress.ip_address(host).is_unspecified
