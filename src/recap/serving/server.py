"""The process: a socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from recap.serving.app import create_app
from recap.serving.service import Service

MARGIN = 5.0  # seconds for answers to be sent after the time of grace
Close = Callable[[], Awaitable[None]]


class Server(uvicorn.Server):
    """uvicorn, which after a signal lets `close` end the work that is under way."""

    def __init__(self, config: uvicorn.Config, close: Close) -> None:
        super().__init__(config)
        self.close = close

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for an orderly end, another SIGINT for one at once."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(self.close())
        await super().shutdown(sockets)
        await asyncio.wait({closing}, timeout=0 if self.force_exit else None)


def serve(service: Service, host: str, port: int, *, token: str | None = None) -> None:
    """Serve until a signal comes; says where once it listens. Accepted work is finished, within the time of grace."""
    with bound(host, port) as listener:
        print(f"{service.name}: listening on {address(listener)}", flush=True)
        grace = service.limits.grace
        listen(create_app(service, token), listener, lambda: service.close(grace), grace)


def listen(app: FastAPI, listener: socket.socket, close: Close, grace: float) -> None:
    """Run an application until a signal comes; `close` then has `grace` seconds to end what is under way."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(grace + MARGIN),
        server_header=False,
    )
    Server(config, close).run([listener])


def address(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; one that cannot be had is said before anything else happens."""
    if not 0 <= port < 2**16:  # the system would take the last 16 bits of it
        raise ValueError(f"cannot listen on port {port}; give --port from 0 (any) to {2**16 - 1}")
    listener: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # who comes before the application is ready waits
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ValueError(f"cannot listen on {host}:{port} ({error}); give another --host or --port") from error
    return listener
