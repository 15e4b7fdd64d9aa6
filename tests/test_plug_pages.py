"""The pages on plugging in and on antibodies: their code runs as it is printed."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import recap
from tests.models import standins

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """The code blocks of a page, with the lines at which they begin."""
    text = (DOCS / page).read_text()
    found = [(text[: m.start(2)].count("\n") + 1, m[1], m[2]) for m in BLOCK.finditer(text)]
    return [(line, code) for line, kind, code in found if kind == language]


def test_the_page_on_plugging_in_runs_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    mar: Any = standins.random(standins.MaskedAutoregressor())
    space: dict[str, Any] = {"mar": mar}  # what the reader holds
    with torch.random.fork_rng():
        for line, code in blocks("plug-in.md", "python"):
            exec(compile("\n" * (line - 1) + code, str(DOCS / "plug-in.md"), "exec"), space)
    assert isinstance(space["adapter"], recap.Adapter)
    assert space["latents"].shape == (2, 16, 4)
    printed = without_errors(capsys.readouterr().out)
    ((_, shown),) = blocks("plug-in.md", "text")
    assert printed == without_errors(shown)


def test_the_page_on_antibodies_runs_as_it_is_printed() -> None:
    if not all(importlib.util.find_spec(name) for name in ("antiberty", "transformers")):
        pytest.skip("antiberty and transformers are not installed")
    ((line, code),) = blocks("antibodies.md", "python")
    exec(compile("\n" * (line - 1) + code, str(DOCS / "antibodies.md"), "exec"), {})
    ((_, shown), *_) = blocks("antibodies.md", "console")
    command, printed = shown.strip().split("\n")[1:]
    done = subprocess.run(
        [sys.executable, "-m", *command.removeprefix("$ ").split()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, printed)


def without_errors(text: str) -> str:
    """A report with the sizes of its errors left out: they are rounding, and differ from machine to machine."""
    return re.sub(r"error \S+", "error", text)


def test_two_methods_are_all_that_the_worked_example_must_write() -> None:
    assert recap.Adapter.__abstractmethods__ == {"full", "local"}
