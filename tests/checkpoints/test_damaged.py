"""Files that are broken, or that want to run code."""

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.targets import Attack
from safetensors.torch import save_file

from recap.checkpoints import CheckpointError, load_official, read_official
from tests.checkpoints.nets import HEADS, recap, refused, small


def save_pickle(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def save_legacy(content: object, path: Path) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [save_pickle, torch.save, save_legacy], ids=["pickle", "zip", "legacy"])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside weights"])
def test_nothing_in_a_file_is_run(
    write: Callable[[object, Path], None], beside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, file = tmp_path / "mark", tmp_path / "evil.pth"
    attack = Attack(mark)
    pickle.loads(pickle.dumps(attack))
    assert mark.is_dir(), "the attack itself does not work"
    mark.rmdir()
    state = {"z_proj.weight": torch.zeros(2, 2)}
    write({"model_ema": state, "model": state, "args": attack} if beside else attack, file)
    message = refused(read_official, file)
    assert "refused" in message
    assert "nothing of it was run" in message
    assert recap("convert", file, tmp_path / "out") == 2
    assert beside or "mkdir" in capsys.readouterr().err  # what it wanted to call
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


CONTENTS = {
    "empty": b"",
    "json": b'{"family": "mar", "config": {}}',
    "html": b"<!DOCTYPE html><html>quota exceeded</html>",
    "noise": random.Random(0).randbytes(4096),
    "pickle cut short": pickle.dumps({"a": [1.0] * 50}, protocol=2)[:-30],
    "pickle of no dict": pickle.dumps([1, 2, 3], protocol=2),
    "zip magic only": b"PK\x03\x04",
    "endless array": b"\x80\x02cbuiltins\nbytearray\n\x8a\x08" + (2**62).to_bytes(8, "little") + b"\x85R.",
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_other_files_are_refused(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(CONTENTS[content])
    assert str(path) in refused(read_official, path)


@pytest.mark.parametrize("content", [{}, {"model": {}}, {"epoch": 3}, [1, 2], torch.zeros(3), None], ids=str)
def test_files_without_weights_are_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pth")
    assert "holds no weights" in refused(read_official, tmp_path / "a.pth")


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert "does not exist" in refused(read_official, tmp_path / "none.pth")
    assert "no file" in refused(read_official, tmp_path)


@pytest.mark.parametrize("write", [torch.save, save_legacy, save_file], ids=["zip", "legacy", "safetensors"])
def test_truncated_files_are_refused(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    path = tmp_path / ("a.safetensors" if write is save_file else "a.pth")
    write(small("maskgit").state_dict(), path)
    whole = path.read_bytes()
    load_official(path, heads=HEADS)
    rng = random.Random(0)
    for length in [1, 7, 8, 100, *(rng.randrange(len(whole)) for _ in range(12)), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert str(path) in refused(load_official, path, heads=HEADS)


@pytest.mark.parametrize("write", [save_pickle, save_legacy, torch.save], ids=["pickle", "legacy", "zip"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # a flipped bit may be the protocol number
def test_flipped_bytes_never_escape_as_another_error(write: Callable[[object, Path], None], tmp_path: Path) -> None:
    path, rng = tmp_path / "a.pth", random.Random(0)
    write({"a": torch.zeros(2) if write is not save_pickle else [1, 2.0, "x"], "b": {"c": 3}}, path)
    whole = path.read_bytes()
    refusals = 0
    for _ in range(250):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_official(path)
        except CheckpointError:
            refusals += 1
    assert refusals > 50
