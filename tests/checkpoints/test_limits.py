"""Bombs, objects and other harm in files, each refused in a line that says what to do."""

import io
import json
import math
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.targets import MARK, Attack, archive, arrays, picture, saved, seeds_of_pickles, state
from safetensors.torch import load_file, save_file

from recap import Pipeline
from recap.checkpoints import CheckpointError, load_official, load_pretrained, save_pretrained
from recap.checkpoints.safe_files import (
    DEFAULTS,
    check_tensors,
    limit,
    read_arrays,
    read_json,
    read_text,
)
from recap.cli import main
from recap.core.counts import group_lengths
from recap.evaluation.features import load_inception
from recap.evaluation.images import open_images
from recap.evaluation.metrics import FeatureStatistics
from recap.evaluation.report import read_sweep
from recap.models.maskgit import MaskGITConfig
from recap.models.registry import SIZES, adapt, architectures, build, randomize
from recap.pipelines.loading import blank_net
from recap.tokenizers import KLVAEConfig, VQGANConfig
from recap.training.data import read_photos
from recap.view.pictures import open_picture

Capture = pytest.CaptureFixture[str]


def header(shape: tuple[int, ...], descr: str = "<f8") -> bytes:
    """The head of an array, and nothing of what it promises."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_limits_may_be_raised_and_lowered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("12345")
    monkeypatch.setenv("RECAP_MOST_TEXT_BYTES", "4")
    with pytest.raises(ValueError, match=r"a\.txt has 5 bytes, and at most 4 are read; .* RECAP_MOST_TEXT_BYTES=5"):
        read_text(tmp_path / "a.txt")
    monkeypatch.setenv("RECAP_MOST_TEXT_BYTES", "5")
    assert read_text(tmp_path / "a.txt") == "12345"
    monkeypatch.setenv("RECAP_MOST_TEXT_BYTES", "-5")
    with pytest.raises(ValueError, match="must be a whole number"):
        limit("MOST_TEXT_BYTES")
    assert all(limit(name) == value for name, value in DEFAULTS.items() if name != "MOST_TEXT_BYTES")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "1" * 5000, '{"a": ', '"\\ud800', '{"a": NaN}', "[-Infinity]"], ids=len
)
def test_json_of_any_kind_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json is not valid JSON"):
        read_json(tmp_path / "a.json")


PYTHON_2 = b"{'descr': '<f8', 'shape': (3,),\n"  # numpy would go on with what Python 2 wrote, and look for its end
ARRAYS = [header((10**6, 10**6)), header((2**62, 4)), header((10**5,)), b"noise"]


@pytest.mark.parametrize(
    "array", [*ARRAYS, b"\x93NUMPY\x01\x00" + struct.pack("<H", len(PYTHON_2)) + PYTHON_2], ids=len
)
def test_arrays_that_are_not_what_they_say(array: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    path.write_bytes(archive({"mu.npy": array, "sigma.npy": header((3, 3))}))
    for read in (read_arrays, FeatureStatistics.load):
        with pytest.raises(ValueError, match=r"s\.npz cannot be read as npz"):
            read(path)


def test_arrays_are_bounded_together_by_what_they_unpack_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.npz"
    path.write_bytes(arrays(mu=np.zeros(100), sigma=np.zeros((100, 100))))
    with zipfile.ZipFile(path) as inside:
        size = sum(member.file_size for member in inside.infolist())
    monkeypatch.setenv("RECAP_MOST_ARRAY_BYTES", str(size - 1))
    with pytest.raises(ValueError, match=f"unpacks to {size:,} bytes.* RECAP_MOST_ARRAY_BYTES={size}"):
        read_arrays(path)
    assert read_arrays(path, ["mu"])["mu"].shape == (100,)
    monkeypatch.setenv("RECAP_MOST_ARRAY_BYTES", str(size))
    assert read_arrays(path)["sigma"].shape == (100, 100)


def test_objects_in_arrays_are_never_made(tmp_path: Path) -> None:
    evil = np.asarray([Attack(tmp_path / MARK)], dtype=object)
    (tmp_path / "s.npz").write_bytes(arrays(mu=evil, sigma=evil, classes=evil, arr_0=evil))
    readers: list[Callable[[Path], Any]] = [read_arrays, FeatureStatistics.load, open_images]
    for read in readers:
        with pytest.raises(ValueError, match=r"[Oo]bject|expected"):
            read(tmp_path / "s.npz")
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("n", [np.asarray(np.inf), np.asarray([1, 2]), np.asarray("x"), np.asarray(1 + 2j)], ids=str)
def test_counts_that_are_none(n: np.ndarray, tmp_path: Path) -> None:
    for counts in ({"n": n}, {"classes": n}) if n.dtype.kind != "i" else ({"n": n},):
        (tmp_path / "s.npz").write_bytes(arrays(mu=np.zeros(2), sigma=np.eye(2), **counts))
        with pytest.raises(ValueError, match=r"s\.npz has"):
            FeatureStatistics.load(tmp_path / "s.npz")


WRONG: list[Any] = [-1, 10**9, 10**18, 10**400, 1e30, math.inf, math.nan, "9", True, [1], {}]


@pytest.mark.parametrize("name", architectures())
def test_every_number_of_a_model_has_bounds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is built, by whoever reads the folder."""
    usual = asdict(architectures()[name].config())
    numbers = [field for field, value in usual.items() if not isinstance(value, bool | str | dict)]
    assert len(numbers) > 5
    monkeypatch.setattr("torch.nn.Module.__init__", lambda *_: pytest.fail("something was built"))
    for field, wrong, read in product(numbers, WRONG, (load_pretrained, blank_net)):
        value = [1, 1, wrong] if isinstance(usual[field], tuple) else wrong
        config = {"format": "recap", "family": name, "config": {**usual, field: value}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=f"{field} is|is no number of JSON"):
            read(tmp_path)


def test_weights_of_other_kinds_are_refused(tmp_path: Path) -> None:
    config = KLVAEConfig(channels=8, groups=4, multipliers=(1, 1))
    save_pretrained(randomize(build(config)), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):
        save_file({key: value.to(kind) for key, value in tensors.items()}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=f"is of {kind}; save it in float32"):
            load_pretrained(tmp_path)


def test_images_that_no_machine_can_hold_are_refused() -> None:
    """A small file may describe them: every level doubles the sides."""
    model = adapt(randomize(build(MaskGITConfig(width=8, depth=2, heads=2, num_tokens=1024, codes=4, classes=2))))
    tokenizer = build(VQGANConfig(channels=1, groups=1, multipliers=(1,) * 10, blocks=1, latent_channels=2, codes=4))
    with pytest.raises(ValueError, match="draw images of 16384x16384 pixels, and at most 64,000,000 are read"):
        Pipeline(model, tokenizer=tokenizer)


def compressed() -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved({"model": state()}))) as whole:
        members = {name: whole.read(name) for name in whole.namelist()}
    bomb = next(name for name in members if name.endswith("/data/0"))
    return archive({**members, bomb: bytes(1 << 24)}, zipfile.ZIP_DEFLATED)


def overstated() -> bytes:
    content = bytearray(archive({"a/data.pkl": pickle.dumps({}, 2), "a/version": b"3\n"}))
    struct.pack_into("<II", content, content.rindex(b"PK\x01\x02") + 20, 1 << 30, 1 << 30)
    return bytes(content)


@pytest.mark.parametrize(("make", "size"), [(compressed, "16,7"), (overstated, "1,073,741,")])
def test_archives_of_more_than_they_have_are_refused_before_they_are_unpacked(
    make: Callable[[], bytes], size: str, tmp_path: Path
) -> None:
    content = make()
    (tmp_path / "a.pth").write_bytes(content)
    assert len(content) < 1 << 18
    with pytest.raises(CheckpointError, match=f"it unpacks to {size}"):
        load_official(tmp_path / "a.pth", heads=2)


def test_tensors_are_there_in_full(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    path.write_bytes(saved({"a": torch.zeros(1)}))
    check_tensors({"a": torch.zeros(10)}, path)
    for odd in (torch.empty(10**12, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(CheckpointError, match="no plain tensor"):
            check_tensors({"a": odd}, path)
    with pytest.raises(CheckpointError, match="its tensors take 4,000,000,000,000 bytes"):
        check_tensors({"a": torch.zeros(1).expand(10**12)}, path)
    shared = torch.zeros(1 << 18)
    with pytest.raises(CheckpointError, match="its tensors take"):
        check_tensors({str(key): shared for key in range(4)}, path)


def test_weights_that_repeat_one_value_are_not_blown_up(tmp_path: Path) -> None:
    shapes = build(SIZES["maskgit-large"], meta=True).state_dict()
    (tmp_path / "a.pth").write_bytes(saved({key: torch.zeros(1).expand(t.shape) for key, t in shapes.items()}))
    with pytest.raises(CheckpointError, match="its tensors take"):
        load_official(tmp_path / "a.pth")


def test_pickles_inside_anything_are_never_run(tmp_path: Path, capsys: Capture) -> None:
    for index, content in enumerate(seeds_of_pickles(tmp_path)):
        for suffix in (".pth", ".pt", ".safetensors"):
            path = tmp_path / f"{index}{suffix}"
            path.write_bytes(content)
            status = main(["convert", str(path), str(tmp_path / "out"), "--heads", "2"])
            err = capsys.readouterr().err
            assert (status, err.count("\n")) in ((0, 0), (2, 1)), err
            with pytest.raises(ValueError, match=r"\w"):
                load_inception(path)
    assert not (tmp_path / MARK).exists()


def png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [png(60_000, 60_000, b""), png(4, 4, b""), b"", b"GIF89a" + bytes(20), picture()[:40], picture("JPEG")[:50]],
    ids=["huge", "empty", "nothing", "gif", "cut png", "cut jpeg"],
)
def test_pictures_that_are_none(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.png is no readable picture"):
        open_picture(tmp_path / "a.png", "a.png")
    with pytest.raises(ValueError, match=r"a\.png is no readable picture"):
        list(open_images(tmp_path).batches(1))
    with pytest.raises(ValueError, match=r"a\.png is no readable picture"):
        read_photos(tmp_path)
    argv = ["edit", "--model", "flowers-mage", "--image", str(tmp_path / "a.png"), "--keep", "left"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_damaged_places_in_an_archive_are_named(tmp_path: Path) -> None:
    content = bytearray(arrays(arr_0=np.zeros((2, 4, 4, 3), np.uint8)))
    struct.pack_into("<I", content, content.rindex(b"PK\x05\x06") + 16, 1 << 31)  # where the directory starts
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz cannot be read"):
        list(open_images(tmp_path / "a.npz").batches(1))


def test_results_with_parts_missing_are_refused(tmp_path: Path) -> None:
    about = {"model": "m", "family": "mar", "machine": {"device": "d"}}
    infinite = {"schedule": "8", "seed": math.inf, "num": 1, "figures": {}, "seconds": {}, "warmup": 0}
    for points in ([], [infinite], [3], 3):
        (tmp_path / "sweep.json").write_text(json.dumps({**about, "points": points}))
        with pytest.raises(ValueError, match="no result of `recap sweep`"):
            read_sweep(tmp_path)


@pytest.mark.parametrize("numbers", [(10**15,), (10**30, 10**30), (2**40, 2)], ids=str)
def test_schedules_of_any_length_are_refused_at_once(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="evaluations was asked for; expected 1,048,576 at most"):
        group_lengths(*numbers)


@pytest.mark.parametrize("content", [b"", b"noise", saved({"recipe": 3}), saved([1])], ids=len)
def test_states_of_a_training_that_are_none(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_bytes(picture(side=16))
    (tmp_path / "training.pt").write_bytes(content)
    argv = ["train", "tokenizer", "--size", "tiny", "--perceptual", "none", "--steps", "1", "--batch", "1"]
    assert main([*argv, "--data", str(tmp_path / "data"), "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "training.pt" in err
    assert err.count("\n") == 1


def test_a_picture_through_a_link_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("private")
    (tmp_path / "in").mkdir()
    os.symlink(tmp_path / "outside.txt", tmp_path / "in" / "a.png")
    with pytest.raises(ValueError, match="no readable picture") as caught:
        list(open_images(tmp_path / "in").batches(1))
    assert "private" not in str(caught.value)
