"""A reader who works through a page from top to bottom, in one folder and one Python."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.docs import programs, reader, smaller
from tests.docs.blocks import COMMANDS, PYTHON, Block, blocks
from tests.docs.shell import commands

MEASURED = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+")  # times and errors: other ones on every machine


class Session:
    """Runs the blocks of a page in order, each once; a block that failed fails all that come after it."""

    def __init__(self, page: Path, folder: Path, home: Path, real: bool = False) -> None:
        """`home` has small networks in the place of the models inside; `real` leaves Python those that there are."""
        self.blocks, self.folder, self.home, self.real = blocks(page), folder, home, real
        self.space: dict[str, Any] = {"__name__": "__main__"}
        self.given: dict[str, Any] = {}
        self.shell = programs.Shell(self.small)
        self.done = 0
        self.failure: Exception | None = None
        self.random = torch.get_rng_state()
        with self.small():
            reader.prepare(folder)

    def run(self, block: Block) -> None:
        """Run a block, and before it those that the reader has come past."""
        place = self.blocks.index(block)
        while self.done <= place:
            if self.failure is not None:
                raise AssertionError(f"{block.place} was not reached: {self.failure}") from self.failure
            now = self.blocks[self.done]
            self.done += 1
            try:
                with self.there():
                    self.step(now)
            except Exception as error:
                self.failure = error
                raise

    def finish(self) -> Session:
        """Run all that is left."""
        if self.blocks:
            self.run(self.blocks[-1])
        return self

    def step(self, block: Block) -> None:
        if block.language in PYTHON:
            self.python(block)
        elif block.language in COMMANDS:
            for command in commands(block):
                printed = self.shell.run(command)
                if command.printed and printed is not None:
                    compare(command.place, command.printed, printed)

    def python(self, block: Block) -> None:
        with self.small():
            held = reader.held(block.code)
        for name, value in held.items():
            if self.space.get(name) is self.given.get(name):  # nothing, or what was given before
                self.space[name] = self.given[name] = value
        code = compile("\n" * (block.line - 1) + smaller.python(block.code), str(block.page), "exec")
        run: Callable[..., None] = exec
        with smaller.smaller(None if self.real else self.home), captured() as out:
            try:
                run(code, self.space)
            except NameError as error:
                raise AssertionError(
                    f"{block.place}: {error}; no block before it defines that, and it is not among what the reader "
                    f"is said to hold (HELD in tests/docs/reader.py)"
                ) from error
            except Exception as error:
                raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error
        if block.printed is not None:
            compare(block.place, block.printed, out.getvalue())

    @contextmanager
    def there(self) -> Iterator[None]:
        """In the reader's folder, with the page's own random numbers."""
        before = os.getcwd()
        with torch.random.fork_rng(devices=[]), pytest.MonkeyPatch.context() as patch:
            torch.set_rng_state(self.random)
            os.chdir(self.folder)
            patch.delenv("RECAP_TOKEN", raising=False)
            try:
                yield
            finally:
                os.chdir(before)
                self.random = torch.get_rng_state()

    def small(self) -> AbstractContextManager[None]:
        """Networks are small meanwhile."""
        return smaller.smaller(self.home)


@contextmanager
def captured() -> Iterator[io.StringIO]:
    """What is printed, progress bars left out."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        yield out


def compare(place: str, shown: str, printed: str) -> None:
    """Refuse a page that shows other lines than are printed; of numbers with a point it is enough to be there."""
    ours, theirs = ([shape(line) for line in text.strip().splitlines()] for text in (shown, printed))
    if ours != theirs:
        raise AssertionError(f"{place} shows\n{shown}\nbut what is printed is\n{printed}")


def shape(line: str) -> str:
    return " ".join(MEASURED.sub("#", line).split())
