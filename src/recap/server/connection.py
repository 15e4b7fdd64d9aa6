"""One connection: how long its client may take to ask and to listen, and which one makes room where there are many.

uvicorn has a deadline for connections that are kept open between requests, and none for what is sent slowly or never
read. All of these are here; what a whole request may cost is the business of what stands behind.
"""

from __future__ import annotations

import asyncio
import logging
import math

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from recap.server.limits import Limits

log = logging.getLogger("recap.server")
BURST = 8  # connections that are accepted before one of them is looked at
AHEAD = 1024  # that wait in the kernel: where there is no room, clients try again after a second
SPARE = 64  # files for everything else: models, threads, sockets that are about to close
LEAST = 8  # connections without which a server is of no use
LINGER = 2.0  # seconds in which the rest of a refused body is thrown away, so that its sender reads the answer
LAST = 2.0  # seconds for what is under way on the wire when the server ends
QUIET = 60.0  # seconds between two lines of the log that say the same


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, with the limits of connections."""

    limits: Limits
    most: int  # connections
    told = -math.inf  # when the log was told last that there are too many


class Connection(H11Protocol):
    """A connection with deadlines for headers, bodies and answers.

    Where there are more connections than may be, the one that has been waiting longest for a request is closed: an
    honest client sends one at once.
    """

    config: ServerConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that writing is paused for as long as anything is not taken
        self.patience = self.config.limits.sending
        self.idle_since, self.thrown, self.ending = self.loop.time(), 0, False
        self.coming: asyncio.TimerHandle | None = None  # closes it unless what should come comes
        self.taking: asyncio.TimerHandle | None = None  # closes it unless what was sent is taken
        self.expect(self.config.limits.reading)
        if len(self.connections) > self.config.most:
            self.make_room()

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def make_room(self) -> None:
        """Close the connection that has been without a request for longest, this one if all others have one."""
        idle = [each for each in self.connections if isinstance(each, Connection) and each.idle]
        oldest = min(idle, key=lambda each: each.idle_since)
        self.connections.discard(oldest)  # what is told to close is not there any more
        oldest.transport.abort()
        if self.loop.time() > self.config.told + QUIET:
            self.config.told = self.loop.time()
            log.warning("more than %d connections at once; from now on, idle ones make room", self.config.most)

    def data_received(self, data: bytes) -> None:
        if self.idle and self.conn.their_state is h11.SEND_BODY:  # of a request that is answered
            self.thrown += len(data)
            if self.thrown > self.config.limits.max_body:
                self.transport.abort()
                return
        super().data_received(data)
        if not self.idle:
            if not self.ending or not self.cycle.more_body:
                self.expect(None)
        elif self.coming is None:
            self.expect(self.config.limits.reading)

    def on_response_complete(self) -> None:
        self.idle_since, self.thrown = self.loop.time(), 0
        super().on_response_complete()
        if self.idle and self.conn.their_state is h11.SEND_BODY:
            self.expect(LINGER)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.taking = self.within(self.patience, self.taking)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.taking = self.within(None, self.taking)

    def expect(self, seconds: float | None) -> None:
        """Close the connection unless more is heard of it in time; None: whoever answers it keeps the time."""
        self.coming = self.within(seconds, self.coming)

    def within(self, seconds: float | None, before: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
        """A deadline instead of the one `before`, or none."""
        if before is not None:
            before.cancel()
        return None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.coming, self.taking = self.within(None, self.coming), self.within(None, self.taking)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """What is whole is still answered; who does not send or take the rest soon holds up nobody."""
        self.ending, self.patience = True, min(self.patience, LAST)
        if self.taking is not None:
            self.taking = self.within(self.patience, self.taking)
        if not self.idle and self.cycle.more_body:
            self.expect(LAST)
        super().shutdown()


def most_connections(wanted: int) -> int:
    """As many connections as are wanted and as the limit of open files leaves room for."""
    room = _files() - 4 * BURST - SPARE  # what is told to close is there for some turns of the loop
    if room < LEAST:
        need = LEAST + 4 * BURST + SPARE
        raise ValueError(f"only {_files():g} files may be open, but the server needs {need}; raise `ulimit -n`")
    return int(min(wanted, room))


def _files() -> float:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # not a Unix
        return math.inf
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft
