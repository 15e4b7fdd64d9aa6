"""Errors at the command line: one line and an exit status, and the whole story with --debug."""

from collections.abc import Callable

import pytest
import torch

from recap import cli
from recap.cli import main, one_line, plan

Capture = pytest.CaptureFixture[str]


def raising(error: Exception) -> Callable[..., int]:
    def run(args: object) -> int:
        raise error

    return run


UNEXPECTED = [
    RuntimeError("mat1 and mat2\nshapes"),
    KeyError("x"),
    AttributeError(),
    RecursionError(),
    AssertionError(),
]


@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_what_nobody_expected_is_one_line_too(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(plan, "run", raising(error))
    assert main(["plan"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"recap plan: unexpected {type(error).__name__}: ")
    assert "--debug" in err
    assert err.count("\n") == 1
    for argv in (["--debug", "plan"], ["plan", "--debug"]):
        with pytest.raises(type(error)):
            main(argv)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("out of memory")])
def test_memory_that_does_not_suffice_says_what_to_do(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(plan, "run", raising(error))
    assert main(["plan"]) == 1
    err = capsys.readouterr().err
    assert "use --batch auto" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [ValueError("bad"), OSError(5, "I/O"), FloatingPointError("nan")])
def test_bad_input_has_status_two(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(plan, "run", raising(error))
    assert main(["plan"]) == 2
    assert capsys.readouterr().err == f"recap plan: {error}\n"


def test_lists_in_messages_become_one_line() -> None:
    error = ValueError("a does not fit\n2 missing:\n  x\n  y\nThe file looks like b.")
    assert one_line(error) == "a does not fit; 2 missing: x, y; The file looks like b."
    assert one_line(ValueError("")) == "ValueError"


def test_messages_move_no_cursor_and_have_an_end() -> None:
    text = one_line(ValueError("a\x1b[2Jb\rc\u202ed\x00\ud800"))
    assert text.isprintable()
    assert text.startswith("a\\x1b[2Jb\\rc\\u202ed")
    long = one_line(ValueError("x" * 10**6))
    assert len(long) < 2 * cli.MAX_MESSAGE
    assert "998,000 more characters" in long


def test_names_with_line_ends_stay_on_one_line(capsys: Capture) -> None:
    assert main(["plan", "--model", "a\nb\x1b[31m", "--full", "4"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err
