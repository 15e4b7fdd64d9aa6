"""The processes of a run: how they find each other, and what they share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import Store
from torch.distributed.rendezvous import rendezvous

HEARTBEAT = 1.0  # seconds between two looks at whether the launcher is still there
PAUSE = 0.05  # seconds between two looks at something that is waited for
SHARE = 4  # a process takes at most this part of its share of what is left, so that all end together
T = TypeVar("T")


class Ranks:
    """This process among those of its run, here the only one: counters and values that all of them share."""

    launched = False  # by PyTorch's launcher, which ends all processes if one fails
    rank, world, attempt = 0, 1, 0
    first = True  # whether this is the one that prepares, shows and ends the run

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

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
        return LaunchedRanks(store, rank, world, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    def add(self, key: str, amount: int = 1) -> int:
        """Count something that all processes count; the sum so far."""
        total: int = self._values.get(key, 0) + amount
        self._values[key] = total
        return total

    def put(self, key: str, value: Any) -> None:
        """Say something to all processes."""
        self._values[key] = value

    def get(self, key: str) -> Any:
        """What was put there, as soon as it was."""
        return self._values[key]

    def wait(self, key: str, amount: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until a count has come to `amount`."""
        while self.add(key, 0) < amount:
            meanwhile()
            time.sleep(PAUSE)

    def heartbeat(self) -> bool:
        """Whether it is time to look at what all processes have done."""
        return True

    def device(self, name: str) -> str:
        """The device of this process: of several GPUs its own."""
        return name


class LaunchedRanks(Ranks):
    """The processes that PyTorch's launcher started.

    They share a store and a folder, and nothing else: no process ever waits for another one inside of a collective,
    so one that dies leaves nobody hanging.
    """

    launched = True

    def __init__(self, store: Store, rank: int, world: int, attempt: int) -> None:
        self._store, self.rank, self.world, self.attempt = store, rank, world, attempt
        self.first = rank == 0
        self._prefix = f"recap/{attempt}/"
        self._looked = time.monotonic()

    def add(self, key: str, amount: int = 1) -> int:
        return self._ask(self._store.add, self._prefix + key, amount)

    def put(self, key: str, value: Any) -> None:
        self._ask(self._store.set, self._prefix + key, json.dumps(value))

    def get(self, key: str) -> Any:
        while not self._ask(self._store.check, [self._prefix + key]):
            time.sleep(PAUSE)
        return json.loads(self._ask(self._store.get, self._prefix + key))

    def heartbeat(self) -> bool:
        """Once a second; fails if the launcher is gone, so that nothing runs on unseen."""
        if time.monotonic() - self._looked < HEARTBEAT:
            return False
        self.add("heartbeat", 0)
        self._looked = time.monotonic()
        return True

    def device(self, name: str) -> str:
        if name != "cuda":
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

    def __init__(self, ranks: Ranks, todo: Sequence[int] | None, most: int, *, even: bool) -> None:
        """The first process says what is `todo`, and the others hear it.

        With `even`, fewer than `most` are taken when little is left, so that all processes end together.
        """
        if ranks.first:
            ranks.put("todo", spans(todo or ()))
        self.todo: list[int] = []
        for first, last in ranks.get("todo"):
            self.todo += range(first, last + 1)
        self.ranks, self.most, self.even = ranks, most, even and ranks.world > 1

    def chunks(self) -> Iterator[list[int]]:
        """The numbers for this process; those of a chunk count as done once the next is asked for."""
        while (left := len(self.todo) - self.ranks.add("taken", 0)) > 0:
            size = max(1, min(self.most, left // (SHARE * self.ranks.world))) if self.even else self.most
            end = self.ranks.add("taken", size)
            chunk = self.todo[end - size : end]
            if not chunk:
                return
            yield chunk
            self.ranks.add("done", len(chunk))

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until every process has done what it took."""
        self.ranks.wait("done", len(self.todo), meanwhile)

    @property
    def done(self) -> int:
        return self.ranks.add("done", 0)


def launched_world() -> int:
    """How many processes PyTorch's launcher has started, or 1."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def spans(numbers: Iterable[int]) -> list[list[int]]:
    """Rising numbers as their runs, first and last of each."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
