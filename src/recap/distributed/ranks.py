"""The processes of a run: how they find each other, and what they tell each other."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import count, groupby
from typing import Any, Protocol, TypeVar

import torch
from torch.distributed.rendezvous import rendezvous

BEAT = 1.0  # seconds between two looks at whether the launcher is still there
PAUSE = 0.05  # seconds between two looks at something that is waited for
SHARE = 4  # a process takes at most this part of its share of what is left, so that all end together
T = TypeVar("T")


class Store(Protocol):
    """What is asked of the c10d store that PyTorch's launcher keeps."""

    def add(self, key: str, amount: int, /) -> int: ...
    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...


class OwnStore:
    """The same for a process that is alone."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def add(self, key: str, amount: int, /) -> int:
        total = int(self._values.get(key, "0")) + amount
        self._values[key] = str(total)
        return total

    def set(self, key: str, value: str, /) -> None:
        self._values[key] = value

    def get(self, key: str, /) -> bytes:
        return self._values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        return all(key in self._values for key in keys)


class Ranks:
    """This process among those of its run. They share a store and a folder, and nothing else: no process ever waits
    for another one inside of a collective, so one that dies leaves nobody hanging.
    """

    def __init__(self, store: Store | None = None, rank: int = 0, world: int = 1, attempt: int = 0) -> None:
        self.launched = store is not None  # by PyTorch's launcher, which ends all processes if one fails
        self._store: Store = store or OwnStore()
        self.rank, self.world, self.attempt = rank, world, attempt
        self._prefix = f"recap/{attempt}/"
        self._beat = time.monotonic()

    @classmethod
    def join(cls) -> Ranks:
        """The processes that `torchrun` started with this one, or this one alone."""
        if launched_world() == 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        try:
            store, rank, world = next(rendezvous("env://", timeout=timedelta(minutes=10)))
        except (RuntimeError, ValueError) as error:
            raise ConnectionError(
                f"the other processes cannot be reached ({_line(error)}); start all of them with torchrun"
            ) from error
        return cls(store, rank, world, int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))

    @property
    def first(self) -> bool:
        """Whether this is the one that prepares, shows and ends the run."""
        return self.rank == 0

    def add(self, key: str, amount: int = 1) -> int:
        """Count something that all processes count; the sum so far."""
        return self._ask(lambda: self._store.add(self._prefix + key, amount))

    def count(self, key: str) -> int:
        return self.add(key, 0)

    def tell(self, key: str, value: Any) -> None:
        """Say something to all processes."""
        self._ask(lambda: self._store.set(self._prefix + key, json.dumps(value)))

    def hear(self, key: str) -> Any:
        """What was told, as soon as it was."""
        while not self._ask(lambda: self._store.check([self._prefix + key])):
            time.sleep(PAUSE)
        return json.loads(self._ask(lambda: self._store.get(self._prefix + key)))

    def wait(self, key: str, amount: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until a count has come to `amount`."""
        while self.count(key) < amount:
            meanwhile()
            time.sleep(PAUSE)

    def beat(self) -> bool:
        """Whether it is time to look around; fails if the launcher is gone, so that nothing runs on unseen."""
        if time.monotonic() - self._beat < BEAT:
            return False
        self.count("beat")
        self._beat = time.monotonic()
        return True

    def device(self, name: str) -> str:
        """The device of this process: of several GPUs its own."""
        if name != "cuda" or not self.launched:
            return name
        own = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        if torch.cuda.is_available():
            torch.cuda.set_device(own)  # kernels are launched where one is
        return own

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} has lost the others ({_line(error)}); run the same command again to go on"
            ) from error


class Work:
    """Image numbers that are still to be done, handed out a few at a time to whoever asks next."""

    def __init__(self, ranks: Ranks, todo: Sequence[int], most: int, *, even: bool) -> None:
        """With `even`, fewer than `most` are taken when little is left, so that all processes end together."""
        self.ranks, self.todo, self.most, self.even = ranks, todo, most, even

    @classmethod
    def share(cls, ranks: Ranks, todo: Sequence[int] | None, most: int, *, even: bool) -> Work:
        """The work of all processes; the first says what is `todo`, and the others hear it."""
        if ranks.first:
            ranks.tell("todo", spans(todo or ()))
        return cls(ranks, [i for first, last in ranks.hear("todo") for i in range(first, last + 1)], most, even=even)

    def chunks(self) -> Iterator[list[int]]:
        """The numbers for this process; those of a chunk count as done once the next is asked for."""
        while (left := len(self.todo) - self.ranks.count("taken")) > 0:
            size = self.most
            if self.even and self.ranks.world > 1:
                size = max(1, min(self.most, left // (SHARE * self.ranks.world)))
            end = self.ranks.add("taken", size)
            chunk = list(self.todo[end - size : end])
            if not chunk:
                return
            yield chunk
            self.ranks.add("done", len(chunk))

    def finish(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Until every process has done what it took."""
        self.ranks.wait("done", len(self.todo), meanwhile)

    @property
    def done(self) -> int:
        return self.ranks.count("done")


def launched_world() -> int:
    """How many processes PyTorch's launcher has started, or 1."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "MASTER_ADDR" in os.environ else 1


def spans(numbers: Iterable[int]) -> list[list[int]]:
    """Rising numbers as their runs, first and last of each."""
    steps = count()
    runs = (list(run) for _, run in groupby(numbers, key=lambda number: number - next(steps)))
    return [[run[0], run[-1]] for run in runs]


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
