"""The process: a socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from recap.server.service import Service

MARGIN = 5.0  # seconds for answers to be sent after the time of grace


class Server(uvicorn.Server):
    """uvicorn, which after a signal lets the service end the work that is under way."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for an orderly end, another SIGINT for one at once."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(self.service.close(self.service.limits.grace))
        await super().shutdown(sockets)
        await asyncio.wait({closing}, timeout=0 if self.force_exit else None)


def serve(app: FastAPI, service: Service, listener: socket.socket) -> None:
    """Serve until a signal comes; accepted work is then finished, within the time of grace."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=int(service.limits.grace + MARGIN),
        server_header=False,
    )
    Server(config, service).run([listener])


def address(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; one that cannot be had is refused before anything else happens."""
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
