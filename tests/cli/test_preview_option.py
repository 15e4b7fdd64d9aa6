"""`--preview` of the commands: the same files, and one process that shows."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.runs.runs import pictures
from tests.view.terminals import HIDE, SHOW, Run


def recap(*argv: str) -> int:
    from recap.cli import main

    return main(argv)


def command(what: str, *more: str) -> list[str]:
    own = ["--image", "small.png", "--mask", "mask.png", "--labels", "1"]
    return [what, "--model", "maskgit", *(own if what == "edit" else []), *more]


@pytest.mark.parametrize("what", ["sample", "edit"])
def test_files_of_commands_are_the_same(place: Path, what: str) -> None:
    assert recap(*command(what, "--num", "3", "--out", "plain")) == 0
    status, text = Run(recap, *command(what, "--num", "3", "--out", "seen", "--preview")).end()
    assert status == 0
    assert "image 3 of 3  finished  decoded 16/16" in text
    assert "%|" not in text  # it takes the place of the progress bar
    assert text.rindex(SHOW) > text.rindex(HIDE)
    names = sorted(path.name for path in Path("plain").iterdir())
    assert names == sorted(path.name for path in Path("seen").iterdir())
    assert len(pictures(Path("plain"))) == 3
    for name in set(names) - {"run.json", ".lock"}:
        assert Path("plain", name).read_bytes() == Path("seen", name).read_bytes(), name


def test_only_the_first_process_shows(place: Path) -> None:
    argv = command("sample", "--num", "6", "--preview", "--out", "out")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    runs = [Run(recap, *argv, **common, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in (0, 1)]
    ends = [run.end() for run in runs]
    assert [status for status, _ in ends] == [0, 0]
    assert "decoded" in ends[0][1]
    assert "\x1b" not in ends[1][1]
    assert recap(*command("sample", "--num", "6", "--out", "plain")) == 0
    assert pictures(Path("plain")) == pictures(Path("out"))
