"""The processes of a run: how they find each other, what they share, and the signals that end them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.distributed import HashStore, Store
from torch.distributed.rendezvous import rendezvous

HEARTBEAT = 0.5  # seconds between two looks at what all processes have done
PAUSE = 0.05  # seconds between two looks at something that is waited for
SHARE = 4  # a process takes at most this part of its share of what is left, so that all end together
T = TypeVar("T")


class Ranks:
    """This process among those of its run: counters and values that all of them share.

    They share a store and a folder, and nothing else: no process ever waits for another one inside of a collective,
    so one that dies leaves nobody hanging. A process alone has a store of its own.
    """

    def __init__(self, store: Store | None = None, rank: int = 0, world: int = 1, attempt: int = 0) -> None:
        self.launched = store is not None  # by PyTorch's launcher, which ends all processes if one fails
        self.rank, self.world, self.attempt = rank, world, attempt
        self.first = rank == 0  # whether this is the one that prepares, shows and ends the run
        self._store, self._prefix = store or HashStore(), f"recap/{attempt}/"
        self._looked = time.monotonic()

    @staticmethod
    def join() -> Ranks:
        """The processes that `torchrun` started with this one, or this one alone."""
        if launched_world() == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
            return Ranks()
        try:
            store, rank, world = next(rendezvous("env://", timeout=timedelta(minutes=10)))
        except (RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"the other processes cannot be reached ({_line(error)}); start all of them with torchrun"
            ) from error
        return Ranks(store, rank, world, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    def part(self, name: str) -> Ranks:
        """The same processes with counters and values of their own, for one of several runs."""
        other = copy(self)
        other._prefix = f"{self._prefix}{name}/"
        return other

    def add(self, key: str, amount: int = 1) -> int:
        """Count something that all processes count; the sum so far."""
        return self._ask(self._store.add, self._prefix + key, amount)

    def put(self, key: str, value: Any) -> None:
        """Say something to all processes."""
        self._ask(self._store.set, self._prefix + key, json.dumps(value))

    def get(self, key: str) -> Any:
        """What was put there, as soon as it was."""
        while not self._ask(self._store.check, [self._prefix + key]):
            time.sleep(PAUSE)
        return json.loads(self._ask(self._store.get, self._prefix + key))

    def wait(self, key: str, amount: int, meanwhile: Callable[[], object]) -> None:
        """Until a count has come to `amount`."""
        while self.add(key, 0) < amount:
            meanwhile()
            time.sleep(PAUSE)

    def heartbeat(self) -> bool:
        """Whether it is time to look at what all processes have done.

        Fails if the launcher is gone, so that nothing runs on unseen.
        """
        if time.monotonic() - self._looked < HEARTBEAT:
            return False
        self.add("heartbeat", 0)
        self._looked = time.monotonic()
        return True

    def device(self, name: str) -> str:
        """The device of this process: of several GPUs its own."""
        if name != "cuda" or not self.launched:
            return name
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        if torch.cuda.is_available():
            torch.cuda.set_device(own)  # kernels are launched where one is
        return own

    def _ask(self, question: Callable[..., T], *args: Any) -> T:
        try:
            return question(*args)
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} has lost the others ({_line(error)}); run the same command again to go on"
            ) from error


class WorkQueue:
    """Image numbers that are still to be done, handed out a few at a time to whoever asks next."""

    def __init__(self, ranks: Ranks, todo: Sequence[int], most: int, *, even: bool) -> None:
        """The first process says what is `todo`, and the others hear it.

        With `even`, fewer than `most` are taken when little is left, so that all processes end together.
        """
        if ranks.first:
            ranks.put("todo", todo)
        self.todo: list[int] = ranks.get("todo")
        self.ranks, self.most, self.even = ranks, most, even and ranks.world > 1

    def chunks(self) -> Iterator[list[int]]:
        """The numbers for this process; those of a chunk count as done once the next is asked for."""
        while (left := len(self.todo) - self.ranks.add("taken", 0)) > 0:
            size = max(1, min(self.most, left // (SHARE * self.ranks.world))) if self.even else self.most
            end = self.ranks.add("taken", size)
            chunk = self.todo[end - size : end]
            yield chunk
            self.ranks.add("done", len(chunk))


def launched_world() -> int:
    """How many processes PyTorch's launcher has started, or 1."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class Stopped(KeyboardInterrupt):
    """A run was asked to end, by Ctrl-C or by whoever started it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number  # that shells give to a process that was ended so


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
