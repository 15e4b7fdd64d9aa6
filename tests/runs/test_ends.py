"""The end of a run belongs to it: whatever ends it there, the same command leaves the same files, and no others."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image

from recap.cli import main
from tests.pipelines.test_pipeline import pipeline
from tests.runs.runs import digest, run

pytestmark = pytest.mark.xdist_group("ranks")
FEW = ("--full", "3", "--local", "2", "--num", "2", "--batch", "2")
TIMED = ("run.json", "compare.png")  # files that say how long something took


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(pipeline("maskgit").save_pretrained(tmp_path_factory.mktemp("model") / "m"))


@pytest.fixture
def sample(model: str) -> list[str]:
    return ["sample", "--model", model, *FEW, "--compare", "--pack", "npz"]


@pytest.fixture
def edit(model: str, tmp_path: Path) -> list[str]:
    Image.new("RGB", (8, 8), "red").save(picture := tmp_path / "in.png")
    return ["edit", "--model", model, "--image", str(picture), "--keep", "left", "--labels", "1", *FEW]


def finish(argv: list[str], out: Path) -> dict[str, str]:
    assert main([*argv, "--out", str(out)]) == 0
    return files(out)


def files(out: Path) -> dict[str, str]:
    """What is in a folder, but for times."""
    found = {path.name: digest(path) for path in out.iterdir() if path.name != ".lock"}
    return {name: "" if name in TIMED else value for name, value in found.items()}


def failing(number: int, fail: Callable[[], object]) -> Callable[[int], None]:
    """What puts files to disk, and fails the n-th time."""
    calls, sync = [0], os.fsync

    def synced(file: int) -> None:
        calls[0] += 1
        if calls[0] == number:
            fail()
        sync(file)

    return synced


def full() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("command", ["sample", "edit"])
def test_a_disk_that_is_full_at_any_moment(
    command: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = request.getfixturevalue(command)
    whole, moment, unknown = finish(argv, tmp_path / "whole"), 0, 0
    assert {"run.json", "manifest.json"} < whole.keys()
    while True:
        moment, out, said = moment + 1, tmp_path / str(moment + 1), io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            patch.setattr(os, "fsync", failing(moment, full))
            status = main([*argv, "--out", str(out)])
        if status == 0:  # it was done by then
            break
        last = said.getvalue().replace("\r", "\n").strip().splitlines()[-1]
        assert (status, "No space left on device" in last, str(out) in last) == (2, True, True)
        assert "in seconds" not in last
        assert finish(argv, out) == whole
        unknown += json.loads((out / "run.json").read_text())["seconds"] is None
    assert unknown <= 1  # where this could not be written itself
    assert moment > 6  # manifest, pictures, record, manifest, files, manifest


def kill(number: int) -> None:
    os.fsync = failing(number, partial(os._exit, 9))  # type: ignore[assignment]


def closed_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)


@pytest.mark.parametrize("setup", [*(partial(kill, number) for number in (4, 5, 6, 7)), closed_pipe])
def test_a_run_that_ends_in_its_last_steps(setup: Callable[[], object], sample: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(*sample, "--out", str(out), log=tmp_path / "log", setup=setup).process.exitcode in (9, 141)
    assert finish(sample, out) == finish(sample, tmp_path / "whole")


def test_a_run_goes_on_with_its_number_of_threads(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where bits depend on it; the default engine has the same bits with any."""
    before = torch.get_num_threads()
    argv = ["sample", "--model", model, *FEW, "--out", str(tmp_path / "out")]
    try:
        for engine, begun, known in (("eager", 1, 1), ("eager", 2, 1), ("onednn", 2, None)):
            torch.set_num_threads(begun)
            (tmp_path / "out" / "000001.png").unlink(missing_ok=True)
            assert main([*argv, "--engine", engine, *["--overwrite"] * (engine == "onednn")]) == 0
            assert json.loads((tmp_path / "out" / "manifest.json").read_text()).get("threads") == known
            assert torch.get_num_threads() == (known or begun)
            told = "begun with 1 threads, and goes on with them instead of 2" in capsys.readouterr().out
            assert told == (begun != (known or begun))
    finally:
        torch.set_num_threads(before)


def test_files_of_the_end_are_made_again(
    sample: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    whole = finish(sample, out)
    record = json.loads((out / "run.json").read_text())
    for name in ("run.json", "grid.png", "compare.png"):
        for spoil in (Path.unlink, lambda path: path.write_bytes(b"")):
            spoil(out / name)
            capsys.readouterr()
            assert finish(sample, out) == whole
            assert f"{name} made again" in capsys.readouterr().out.replace("run.json and", "")
    (out / "run.json").unlink()
    finish(sample, out)
    again = json.loads((out / "run.json").read_text())
    for lost in ("made", "processes", "compare"):  # nobody knows any more
        del record[lost]
    assert again == {**record, "seconds": None}


@pytest.mark.parametrize("name", ["grid.png", "run.json", "compare.png", "images.npz", "000001.png"])
def test_foreign_files_are_never_overwritten(
    name: str, sample: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    assert main([*sample, "--out", str(out)]) == 2
    assert f"{name} exists but no manifest.json says which run it belongs to" in capsys.readouterr().err
    assert (out / name).read_text() == "mine"
    assert not (out / "manifest.json").exists()


def test_to_start_anew_takes_what_the_run_made_and_no_more(sample: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish([*sample, "--num", "4"], out)
    (out / "20240131.png").write_text("mine")
    (out / "strip.png").write_text("mine")
    found = finish([*sample, "--overwrite"], out)
    assert {"20240131.png", "strip.png"} == found.keys() - finish(sample, tmp_path / "whole").keys()
    assert (out / "20240131.png").read_text() == (out / "strip.png").read_text() == "mine"


@pytest.mark.parametrize("name", ["000000.png", "strip.png"])
def test_an_edit_never_writes_over_what_it_reads(
    name: str, edit: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    Image.new("RGB", (8, 8), "red").save(out / name)
    argv = [*edit, "--image", str(out / name), "--out", str(out)]
    for more in ([], ["--overwrite"]):
        assert main([*argv, *more]) == 2
        assert f"{name} is an input and would be written" in capsys.readouterr().err


def test_an_edit_stays_out_of_the_folder_of_another_run(
    sample: list[str], edit: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = finish(sample, tmp_path / "out")
    assert main([*edit, "--out", str(tmp_path / "out")]) == 2
    assert "holds a run with other" in capsys.readouterr().err
    assert files(tmp_path / "out") == whole
