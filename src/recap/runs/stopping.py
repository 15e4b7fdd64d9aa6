"""Signals that end a run: what is finished stays, and the user hears how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """A run was asked to end, by Ctrl-C or by whoever started it."""

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(message or f"stopped by {signal.Signals(number).name}")
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells give to a process that was ended so."""
        return 128 + self.number


@contextmanager
def handle_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `Stopped` inside of a `with` block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    if threading.current_thread() is not threading.main_thread():  # where Python handles no signals
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
