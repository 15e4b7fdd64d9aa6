"""Image i of a seed is the same file for any batch, any number of processes and threads, and any history."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.runs.runs import MODEL, Command, digest, pictures, run, together, until

pytestmark = pytest.mark.xdist_group("ranks")  # they share the cores among themselves

NUM = 9
KILLS = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happens to: one process, batches of 8."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert run("sample", *MODEL, "--num", str(NUM), "--out", str(out), log=out.with_suffix(".log")).wait() == 0
    assert len(pictures(out)) == NUM
    return out


@pytest.mark.parametrize(
    ("world", "batch", "threads"), [(1, 1, 2), (1, 3, 1), (2, 8, 1), (2, 1, 1), (3, 3, 1), (3, 8, 1)]
)
def test_batches_processes_and_threads_change_no_byte(
    world: int, batch: int, threads: int, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    argv = ["sample", *MODEL, "--num", str(NUM), "--batch", str(batch), "--out", str(out)]
    if world == 1:
        assert run(*argv, log=tmp_path / "log", threads=threads).wait() == 0
    else:
        commands = together(world, *argv, log=tmp_path / "log", threads=threads)
        assert [command.wait() for command in commands] == [0] * world
    assert pictures(out) == pictures(whole)
    assert digest(out / "manifest.json") == digest(whole / "manifest.json")
    assert digest(out / "grid.png") == digest(whole / "grid.png")


def await_moment(kind: int, out: Path, command: Command, chance: random.Random) -> None:
    """While it begins, soon after the folder is prepared, amid an image, or right after one is written."""
    manifest, before = out / "manifest.json", len(pictures(out))
    written = manifest.stat().st_mtime_ns if manifest.exists() else 0

    def ended() -> bool:
        return command.process.exitcode is not None

    if kind:
        until(lambda: ended() or (manifest.exists() and manifest.stat().st_mtime_ns > written))
    if kind == 3:
        until(lambda: ended() or len(pictures(out)) > before)
    else:
        time.sleep(chance.uniform(0.0, 0.5))


def test_a_run_killed_twenty_times_ends_with_the_same_files(whole: Path, tmp_path: Path) -> None:
    """At seeded moments, in one or two processes, with batches of all sizes; at last it is left alone."""
    chance = random.Random(7)
    out = tmp_path / "out"
    grown = []
    for kill in range(KILLS):
        argv = ["sample", *MODEL, "--num", str(NUM), "--batch", str(chance.choice([1, 3, 8])), "--out", str(out)]
        log = tmp_path / f"log{kill}"
        commands = together(2, *argv, log=log) if kill % 5 == 4 else [Command(*argv, log=log)]
        await_moment(kill % 4, out, commands[0], chance)
        for command in commands:
            command.signal(signal.SIGKILL)
        grown.append(len(pictures(out)))
        assert all(digest(path) == digest(whole / path.name) for path in out.glob("[0-9]*.png"))
    assert grown == sorted(grown)
    assert len(set(grown)) > 2  # it went on in between
    last = run("sample", *MODEL, "--num", str(NUM), "--out", str(out), log=tmp_path / "last")
    assert last.wait() == 0, last.said
    assert pictures(out) == pictures(whole)
    assert digest(out / "manifest.json") == digest(whole / "manifest.json")
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in out.iterdir()} - {"run.json"} == names - {"run.json"}  # and no half file
