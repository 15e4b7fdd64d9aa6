"""`--preview` in terminals: the same files, one process that shows, and the terminal is left as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.terminals import HIDE, SHOW, Run
from tests.runs.runs import launched, pictures

pytestmark = pytest.mark.usefixtures("place")


def recap(*argv: str) -> int:
    from recap.cli import main

    return main(argv)


def command(what: str, *more: str) -> list[str]:
    own = ["--image", "small.png", "--mask", "mask.png", "--labels", "1"]
    return [what, "--model", "maskgit", *(own if what == "edit" else []), *more]


@pytest.mark.parametrize("what", ["sample", "edit"])
def test_files_of_commands_are_the_same(what: str) -> None:
    assert recap(*command(what, "--num", "3", "--out", "plain")) == 0
    status, text = Run(recap, *command(what, "--num", "3", "--out", "seen", "--preview")).end()
    assert status == 0
    assert "▀" in text
    assert "%|" not in text  # it takes the place of the progress bar
    assert text.count(HIDE) == text.count(SHOW) == 1
    before, after = text.split(SHOW)
    assert "image 3 of 3  finished  decoded 16/16" in before
    assert len(after.strip().splitlines()) == 1
    names = sorted(path.name for path in Path("plain").iterdir())
    assert names == sorted(path.name for path in Path("seen").iterdir())
    assert len(pictures(Path("plain"))) == 3
    for name in set(names) - {"run.json", ".lock"}:
        assert Path("plain", name).read_bytes() == Path("seen", name).read_bytes(), name


def test_ctrl_c_gives_the_cursor_back() -> None:
    run = Run(recap, *command("sample", "--num", "100000", "--preview"))
    run.read(lambda written: written.count(b"decoded") > 3)
    os.write(run.master, b"\x03")
    status, text = run.end()
    assert status == 130
    assert "run the same command again to go on" in text[text.rindex(SHOW) :]
    assert text.rindex(SHOW) > text.rindex(HIDE)


def test_no_color_is_applied() -> None:
    status, text = Run(recap, *command("sample", "--num", "2", "--preview"), NO_COLOR="1").end()
    assert status == 0
    assert "\x1b[38" not in text
    assert "▀" not in text
    assert "image 2 of 2  finished" in text


def test_only_the_first_process_shows() -> None:
    argv = command("sample", "--num", "6", "--preview", "--out", "out")
    runs = [Run(recap, *argv, **environment) for environment in launched(2)]
    ends = [run.end() for run in runs]
    assert [status for status, _ in ends] == [0, 0]
    assert "reused 6+4" in ends[0][1].split(SHOW)[0].split(HIDE)[1]
    assert "\x1b" not in ends[1][1]
    assert recap(*command("sample", "--num", "6", "--out", "plain")) == 0
    assert pictures(Path("plain")) == pictures(Path("out"))
