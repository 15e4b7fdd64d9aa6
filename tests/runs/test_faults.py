"""What goes wrong in long runs: each fault, what it leaves behind, and how a run goes on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import recap.runs.draw
from recap.cli import main
from recap.core.noise import image_seed
from recap.evaluation.images import open_images
from recap.models.adapter import Adapter
from tests.pipelines.test_pipeline import pipeline
from tests.runs.runs import Command, digest, pictures, run, together, until

pytestmark = pytest.mark.xdist_group("ranks")
NUM = 7
LIMIT = 4096  # bytes that a file may have in the test of a full disk


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model with five classes, whose images are drawn in milliseconds."""
    return str(pipeline("maskgit").save_pretrained(tmp_path_factory.mktemp("model") / "m"))


@pytest.fixture
def argv(model: str) -> list[str]:
    return ["sample", "--model", model, "--full", "3", "--local", "2", "--num", str(NUM), "--batch", "2"]


@pytest.fixture
def whole(argv: list[str], tmp_path: Path) -> dict[str, str]:
    """What an undisturbed run gives."""
    finish(argv, tmp_path / "whole")
    return pictures(tmp_path / "whole")


def here(argv: list[str], out: Path, *more: str) -> tuple[int, str]:
    """A command in this process: its exit status, and all that it says."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main([*argv, *more, "--out", str(out)])
    assert "Traceback" not in said.getvalue()
    return status, said.getvalue()


def finish(argv: list[str], out: Path, *more: str) -> str:
    status, said = here(argv, out, *more)
    assert status == 0, said
    return said


def refuse(argv: list[str], out: Path, *more: str) -> str:
    status, said = here(argv, out, *more)
    assert status == 2, said
    return said.replace("\r", "\n").strip().splitlines()[-1]


def slow() -> None:
    """Every image takes its time, so that there is some to be disturbed in."""
    before = recap.runs.draw.finish

    def finish(*args: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return before(*args, **more)

    recap.runs.draw.finish = finish


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def full_disk() -> None:
    """The third file that is put to disk finds no room."""
    sync, calls = os.fsync, [0]

    def failing(file: int) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(28, "No space left on device")
        sync(file)

    os.fsync = failing  # type: ignore[assignment]


def broken_class() -> None:
    """A model whose class 2 leads to NaN."""
    before = Adapter.check_labels

    def check(self: Adapter, labels: torch.Tensor | None, order: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.module.get_parameter("context_embed.word_embeddings.weight")[2] = float("nan")
        return before(self, labels, order)

    Adapter.check_labels = check  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [full_disk, small_files])
def test_a_full_disk_is_one_line_and_leaves_no_broken_file(
    fault: object, argv: list[str], whole: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    big = ["--pack", "npz", "--num", "40"] if fault is small_files else []
    command = run(*argv, *big, "--out", str(out), log=tmp_path / "log", setup=fault)  # type: ignore[arg-type]
    assert command.wait() == 2
    reason = "File too large" if big else "No space left on device"
    assert reason in command.said
    assert "run the same command again: what is finished is kept" in command.said
    assert not list(out.rglob(".*.*.*"))  # no drafts
    assert not (out / "images.npz").exists()
    for path in out.rglob("*.png"):
        with Image.open(path) as picture:
            picture.load()
    finish([*argv, *big], out)
    if not big:
        assert pictures(out) == whole


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_what_is_finished_and_say_how_to_go_on(
    number: int, argv: list[str], whole: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = Command(*argv, "--out", str(out), log=tmp_path / "log", setup=slow)
    until(lambda: len(list(out.glob("shards/0*.json"))) > 0)
    assert command.signal(number) == 128 + number
    assert f"stopped by {signal.Signals(number).name}" in command.said
    assert "run the same command again to go on" in command.said
    kept = int(command.said.split(" of 7 images")[0].split()[-1])
    assert 0 < kept < NUM
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("0*.png")}
    assert f"{NUM - kept} of them now" in finish(argv, out)
    assert pictures(out) == whole
    assert sum(path.stat().st_mtime_ns == before.get(path.name) for path in out.glob("0*.png")) >= kept


def test_two_runs_in_one_folder(argv: list[str], whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = Command(*argv, "--out", str(out), log=tmp_path / "first", setup=slow)
    until(lambda: (out / "manifest.json").exists())
    assert f"is in use by another run (process {first.process.pid} on" in refuse(argv, out)
    first.signal(signal.SIGKILL)
    finish(argv, out)  # a lock is gone with its process, however that ended
    assert pictures(out) == whole


def test_settings_that_differ_are_named(argv: list[str], whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "whole"
    assert "other seed (0 there, 1 here)" in refuse(argv, out, "--seed", "1")
    assert "evaluations ('3+2' there, '4+1' here)" in refuse(argv, out, "--full", "4", "--local", "1")
    assert "other labels" in refuse(argv, out, "--labels", "3")
    assert pictures(out) == whole
    changed_pipe = pipeline("maskgit")
    with torch.no_grad():
        next(changed_pipe.model.module.parameters()).view(-1)[0] += 1
    other = str(changed_pipe.save_pretrained(tmp_path / "other"))
    assert "other weights" in refuse(argv, out, "--model", other)
    assert "all 7 images were there" in finish(argv, out, "--batch", "5")  # how many at a time is nobody's business
    finish(argv, out, "--overwrite", "--seed", "1")
    changed = pictures(out)
    assert len(changed) == NUM
    assert not set(changed.values()) & set(whole.values())


def test_a_corrupt_manifest_is_refused(argv: list[str], whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "whole"
    for content in ('{"settings"', "[]", '{"settings": {}, "images": 3}', "\x00", "[" * 10_000):
        (out / "manifest.json").write_text(content)
        said = refuse(argv, out)
        assert "manifest.json is damaged" in said
        assert "--overwrite" in said
    finish(argv, out, "--overwrite")
    assert pictures(out) == whole


def test_damaged_shards_and_pictures_are_drawn_again(argv: list[str], whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = Command(*argv, "--out", str(out), log=tmp_path / "log", setup=slow)
    until(lambda: len(list(out.glob("shards/0*.json"))) > 1)
    command.signal(signal.SIGKILL)
    shard = sorted(out.glob("shards/*.json"))[0]
    shard.write_bytes(shard.read_bytes()[:25])  # half of a record
    picture = out / "000002.png"
    picture.write_bytes(picture.read_bytes()[:-20])  # half of a picture
    (out / ".000005.png.12345").write_bytes(b"half")  # the draft of a process that was killed
    text = finish(argv, out)
    assert f"{shard} is damaged; its images are made again" in text
    assert "are damaged or gone and are made again" in text
    assert pictures(out) == whole
    assert not (out / ".000005.png.12345").exists()
    (out / "000003.png").unlink()
    (out / "000004.png").write_bytes(b"something else")
    assert "2 of them now" in finish(argv, out)  # also after the end
    assert pictures(out) == whole


def test_foreign_files_stay(argv: list[str], whole: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "shards").mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    (out / "holiday.png").write_bytes(b"mine")
    finish(argv, out)
    assert pictures(out) == whole
    assert ((out / "notes.txt").read_text(), (out / "holiday.png").read_text()) == ("mine", "mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "000003.png").write_bytes(b"mine")
    assert "000003.png exists but no manifest.json says" in refuse(argv, other)
    assert (other / "000003.png").read_bytes() == b"mine"


def test_images_with_nan_are_named_and_the_others_kept(argv: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    labels = "0,2,1,3,2,4,0"
    finish([*argv, "--labels", labels], tmp_path / "sound")
    command = run(*argv, "--labels", labels, "--out", str(out), log=tmp_path / "log", setup=broken_class)
    assert command.wait() == 2
    for index in (1, 4):
        assert f"image {index} (own seed {image_seed(0, index)})" in command.said
    assert "5 of 7 images are in" in command.said
    expected = pictures(tmp_path / "sound")
    assert pictures(out) == {name: value for name, value in expected.items() if name[5] not in "14"}
    assert "2 of them now" in finish([*argv, "--labels", labels], out)
    assert pictures(out) == expected


def test_one_file_holds_the_same_pixels_and_never_changes(
    argv: list[str], whole: dict[str, str], tmp_path: Path
) -> None:
    outs = [tmp_path / "once", tmp_path / "again"]
    finish(argv, outs[0], "--pack", "npz")
    command = Command(*argv, "--pack", "npz", "--out", str(outs[1]), log=tmp_path / "log", setup=slow)
    until(lambda: len(pictures(outs[1])) > 2)
    command.signal(signal.SIGKILL)
    commands = together(2, *argv, "--pack", "npz", "--out", str(outs[1]), log=tmp_path / "r")
    assert [command.wait() for command in commands] == [0, 0]
    assert digest(outs[0] / "images.npz") == digest(outs[1] / "images.npz")
    assert pictures(outs[1]) == whole
    read = torch.cat(list(open_images(outs[0] / "images.npz").batches(3)))
    rows = [np.asarray(Image.open(path)) for path in sorted(outs[0].glob("0*.png"))]
    assert torch.equal(read, torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float().div_(255))
    with np.load(outs[0] / "images.npz") as arrays:
        assert (arrays.files, arrays["arr_0"].shape) == (["arr_0"], (NUM, 8, 8, 3))
    assert "all 7 images were there" in finish(argv, outs[0], "--pack", "npz")
    (outs[0] / "images.npz").write_bytes((outs[0] / "images.npz").read_bytes()[:-10])
    finish(argv, outs[0], "--pack", "npz")
    assert digest(outs[0] / "images.npz") == digest(outs[1] / "images.npz")


def test_plans_of_labels(argv: list[str], tmp_path: Path) -> None:
    def labels(*more: str) -> list[int]:
        fewer = argv[: argv.index("--num")]
        finish(fewer, tmp_path / "out", "--overwrite", *more)
        images = json.loads((tmp_path / "out" / "manifest.json").read_text())["images"]
        return [image["label"] for image in images.values()]

    assert labels("--per-class", "2") == [0, 1, 2, 3, 4] * 2
    few, many = labels("--labels", "random", "--num", "5"), labels("--labels", "random", "--num", "12")
    assert many[:5] == few
    assert len(set(many)) > 2
    assert labels("--labels", "random", "--num", "12", "--seed", "1") != many
    (tmp_path / "plan.txt").write_text("3\n1, 4\n\n0\n")
    assert labels("--labels", f"@{tmp_path / 'plan.txt'}") == [3, 1, 4, 0]
    assert labels("--labels", f"@{tmp_path / 'plan.txt'}", "--num", "6") == [3, 1, 4, 0, 3, 1]
    (tmp_path / "plan.txt").write_text("3\n9\n")
    assert "plan.txt, line 2: label 9 is out of range" in refuse(
        argv, tmp_path / "x", "--labels", f"@{tmp_path}/plan.txt"
    )
    assert "No such file" in refuse(argv, tmp_path / "x", "--labels", "@nothing")
    assert "leave --labels and --num out" in refuse(argv, tmp_path / "x", "--per-class", "2")


def launch(world: int, argv: list[str], log: Path, *options: str) -> subprocess.Popen[bytes]:
    """The real launcher. The two bars keep it from taking our options for abbreviations of its own."""
    head = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", *options]
    with log.open("wb") as file:
        return subprocess.Popen(
            [*head, "-m", "--", "recap", *argv],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for the children of a process")
@pytest.mark.parametrize(("victim", "restarts"), [("rank", 0), ("rank", 1), ("launcher", 0)])
def test_killed_under_the_launcher(victim: str, restarts: int, argv: list[str], tmp_path: Path) -> None:
    """With restarts the launcher begins again by itself; without, the same command goes on."""
    out = tmp_path / "out"
    more = ["--num", "300"]
    launcher = launch(3, [*argv, *more, "--out", str(out)], tmp_path / "log", f"--max-restarts={restarts}")
    until(lambda: launcher.poll() is not None or len(list(out.glob("shards/0*.json"))) > 3)
    workers = children(launcher.pid)
    assert len(workers) == 3, (tmp_path / "log").read_text()
    os.kill(workers[1] if victim == "rank" else launcher.pid, signal.SIGKILL)
    status = launcher.wait(240)
    assert (status == 0) == bool(restarts), (tmp_path / "log").read_text()
    until(lambda: not any(map(alive, workers)))  # nobody goes on unseen
    if not restarts:
        finish([*argv, *more], out)
    finish([*argv, *more], tmp_path / "alone")
    assert pictures(out) == pictures(tmp_path / "alone")
