"""A reader who works through a page from top to bottom, in one folder and one Python.

The reader has some files there, and some objects that a page does not make itself.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import recap
from recap.models.registry import SIZES, TOKENIZER_SIZES, build, randomize
from tests.docs import programs, smaller
from tests.docs.blocks import COMMANDS, PYTHON, Block, blocks, check, commands
from tests.models import standins
from tests.writing import write_model

HELD = ("mar", "model")  # objects of somebody else's class, which no page makes itself
MEASURED = re.compile(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+")  # times and errors: other ones on every machine


class Session:
    """Runs the blocks of a page in order, each once; a block that failed fails all that come after it."""

    def __init__(self, page: Path, folder: Path, home: Path, real: bool = False) -> None:
        """`home` has small networks in the place of the models inside; `real` leaves Python those that there are."""
        self.blocks, self.folder, self.home, self.real = blocks(page), folder, home, real
        self.space: dict[str, Any] = {"__name__": "__main__"}
        self.shell = programs.Shell(self.small)
        self.done = 0
        self.failure: Exception | None = None
        self.random = torch.get_rng_state()
        with self.small():
            self.space |= {name: standins.random(standins.MaskedAutoregressor()) for name in HELD}
            prepare(folder)

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
        check(block)
        if block.language in PYTHON:
            self.python(block)
        elif block.language in COMMANDS:
            for command in commands(block):
                printed = self.shell.run(command)
                if command.printed and printed is not None:
                    compare(command.place, command.printed, printed)

    def python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + smaller.python(block.code), str(block.page), "exec")
        run: Callable[..., None] = exec
        out = io.StringIO()
        with smaller.smaller(None if self.real else self.home), redirect_stdout(out), redirect_stderr(io.StringIO()):
            try:
                run(code, self.space)
            except NameError as error:
                raise AssertionError(f"{block.place}: {error}; no block before it defines that") from error
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


def compare(place: str, shown: str, printed: str) -> None:
    """Refuse a page that shows other lines than are printed; of numbers with a point it is enough to be there."""
    ours, theirs = (
        [MEASURED.sub("#", line).split() for line in text.strip().splitlines()] for text in (shown, printed)
    )
    if ours != theirs:
        raise AssertionError(f"{place} shows\n{shown}\nbut what is printed is\n{printed}")


def prepare(folder: Path) -> None:
    """A photo and its mask, official files, the folder that they are converted to, and a model of text."""
    write_model(folder / "books", num_tokens=256)
    (folder / "prompts.txt").write_text("It was a dark night\nThe old house\n")
    pixels = np.random.default_rng(0).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    mask = np.zeros((160, 200), np.uint8)
    mask[:, 100:] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    net, tokenizer = randomize(build(SIZES["mar-large"])), randomize(build(TOKENIZER_SIZES["kl16"]))
    torch.save({"model": net.state_dict(), "model_ema": net.state_dict()}, folder / "checkpoint-last.pth")
    torch.save({"state_dict": tokenizer.state_dict()}, folder / "kl16.ckpt")
    recap.Pipeline(net, tokenizer, options=":preset=mar-large").save_pretrained(folder / "mar-large")
