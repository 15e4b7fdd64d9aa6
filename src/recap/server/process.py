"""The process: a socket, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from recap.server.connection import AHEAD, BURST, LAST, Connection, ServerConfig, most_connections
from recap.server.worker import Worker

MARGIN = 2 * LAST  # seconds for answers to be sent after the time of grace


class Server(uvicorn.Server):
    """uvicorn, which after a signal lets the worker end what is under way, and does not raise the signal again."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self.worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks for an orderly end, another SIGINT for one at once."""
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:  # asyncio takes one number for this queue and for what it accepts at a time
            listener.listen(AHEAD)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = asyncio.ensure_future(self.worker.close(self.worker.limits.grace))
        await super().shutdown(sockets)
        await asyncio.wait({closing}, timeout=0 if self.force_exit else None)


def serve(app: FastAPI, worker: Worker, listener: socket.socket) -> None:
    """Serve until a signal comes; accepted work is then finished, within the time of grace."""
    patience = int(worker.limits.grace + MARGIN)
    config = ServerConfig(
        app,
        http=Connection,
        ws="none",
        log_level="error",  # no line for every request that is none
        access_log=False,
        backlog=BURST,
        timeout_graceful_shutdown=patience,
        server_header=False,
        proxy_headers=False,  # nothing here depends on who asks
    )
    config.limits, config.most = worker.limits, most_connections(worker.limits.connections)
    Server(config, worker).run([listener])


def address(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port, *_ = listener.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; one that cannot be had is refused before anything else happens."""
    if not 0 <= port < 2**16:
        raise ValueError(f"cannot listen on port {port}; give --port from 0 (any) to {2**16 - 1}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ValueError(f"cannot listen on {host}:{port} ({error}); give another --host or --port") from error
