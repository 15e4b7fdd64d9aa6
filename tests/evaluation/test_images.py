"""Images from folders and npz files: the same pixels in a fixed order, and clear words for the rest."""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recap.evaluation.images import ImageSet, open_images

NAMES = ("a.png", "b/a.bmp", "b/c/z.PNG", "c.webp", "d.png")  # in order
HEIGHT, WIDTH = 4, 6


def pixels(count: int = len(NAMES), height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def encoded(picture: np.ndarray, suffix: str = ".png") -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, Image.registered_extensions()[suffix.lower()], lossless=True)
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Pictures and other files by name, not in order."""
    named = {name: encoded(picture, Path(name).suffix) for name, picture in zip(NAMES, pixels(), strict=True)}
    named |= {"notes.txt": b"no picture", "b/._a.png": b"a shadow", "__MACOSX/a.png": b"another", "png": b"none"}
    return dict(reversed(named.items()))


def folder_of(named: dict[str, bytes], place: Path) -> Path:
    path = place / "folder"
    for name, blob in named.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(blob)
    return path


def npz_of(place: Path, **arrays: np.ndarray) -> Path:
    write = np.savez_compressed if "labels" in arrays else np.savez  # either is in use
    write(place / "images.npz", allow_pickle=False, **arrays)
    return place / "images.npz"


MAKERS: dict[str, Callable[[Path], Path]] = {
    "folder": lambda place: folder_of(files(), place),
    "arr_0": lambda place: npz_of(place, arr_0=pixels(), arr_1=np.arange(3)),
    "images": lambda place: npz_of(place, images=pixels(), labels=np.arange(len(NAMES))),
}


def read(images: ImageSet, size: int = 100) -> Tensor:
    return torch.cat(list(images.batches(size)))


@pytest.mark.parametrize("kind", MAKERS)
def test_every_form_holds_the_same_images(tmp_path: Path, kind: str) -> None:
    images = open_images(str(MAKERS[kind](tmp_path)))
    assert len(images) == len(NAMES)
    got = read(images)
    assert got.dtype == torch.float32
    assert got.is_contiguous()
    assert torch.equal(got, torch.from_numpy(pixels()).permute(0, 3, 1, 2) / 255)
    for size, expected in ((1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (5, [5])):  # every pass begins anew
        batches = list(images.batches(size))
        assert [len(batch) for batch in batches] == expected
        assert torch.equal(torch.cat(batches), got)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("L", 51, (51, 51, 51)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),
        ("1", 1, (255, 255, 255)),
        ("P", 1, (7, 8, 9)),  # with a palette, and transparency that nobody is warned of
    ],
)
def test_pictures_become_rgb(tmp_path: Path, mode: str, value: Any, expected: tuple[int, ...]) -> None:
    picture = Image.new(mode, (3, 2), value)
    if mode == "P":
        picture.putpalette([0, 0, 0, 7, 8, 9])
        picture.info["transparency"] = bytes([0, 128])
    picture.save(tmp_path / "a.png")
    got = read(open_images(tmp_path))
    assert got.shape == (1, 3, 2, 3)
    assert torch.equal((got * 255).round()[0, :, 0, 0], torch.tensor(expected).float())


def test_other_sizes_are_named(tmp_path: Path) -> None:
    path = folder_of({"a.png": encoded(pixels(1)[0]), "b.png": encoded(pixels(1, 5, 7)[0])}, tmp_path)
    with pytest.raises(ValueError, match=r"a\.png.* has 6x4 pixels and .*b\.png.* has 7x5"):
        read(open_images(path))


@pytest.mark.parametrize("damage", ["text", "empty", "half", "noise"])
def test_a_damaged_picture_is_named(tmp_path: Path, damage: str) -> None:
    whole = encoded(pixels(1, 64, 64)[0])
    blob = {
        "text": b"<html>not found</html>",
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "noise": whole[:60] + bytes(len(whole) - 60),
    }[damage]
    with pytest.raises(ValueError, match=r"broken\.png.* is no readable picture"):
        read(open_images(folder_of({"a.png": whole, "broken.png": blob}, tmp_path)))


def huge_png(width: int, height: int) -> bytes:
    """A file of a few bytes that claims to be a picture of that size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


# one beyond our limit, one that Pillow warns of, one that it refuses
@pytest.mark.parametrize(("width", "height"), [(8000, 8001), (10_000, 10_000), (50_000, 50_000)])
def test_bombs_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the picture was decoded")

    (tmp_path / "bomb.png").write_bytes(huge_png(width, height))
    monkeypatch.setattr(Image.Image, "convert", never)
    with pytest.raises(ValueError, match=r"bomb\.png is no readable picture .*pixels"):
        read(open_images(tmp_path))


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(path, "GIF")
    with pytest.raises(ValueError, match=r"a\.png is no readable picture"):
        read(open_images(tmp_path))


def test_nothing_is_no_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no pictures"):
        open_images(folder_of({"notes.txt": b""}, tmp_path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"arr_0": pixels() / 255}, r"of float64 but \(n, h, w, 3\) of uint8 is expected"),
        ({"arr_0": pixels().transpose(0, 3, 1, 2).copy()}, r"\(5, 3, 4, 6\) of uint8 but"),
        ({"images": pixels()[0]}, r"images in .* is \(4, 6, 3\)"),
        ({"images": np.asfortranarray(pixels())}, "in Fortran order"),
        ({"images": pixels(0)}, r"\(0, 4, 6, 3\)"),
        ({"arr_0": np.array([{}], dtype=object)}, "of object but"),
        ({"labels": np.arange(3)}, r"has \['labels'\]; expected arr_0 or images"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "images.npz", allow_pickle=True, **arrays)
    with pytest.raises(ValueError, match=message):
        open_images(tmp_path / "images.npz")


def test_an_array_of_huge_pictures_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    header = {"descr": "|u1", "fortran_order": False, "shape": (1, 8001, 8000, 3)}
    np.lib.format.write_array_header_1_0(file, header)
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("arr_0.npy", file.getvalue())
    with pytest.raises(
        ValueError,
        match=r"pictures of 8000x8001 pixels, and at most 64,000,000 are read; .* RECAP_MOST_PIXELS=64008000",
    ):
        open_images(tmp_path / "huge.npz")


def test_an_array_that_ends_early_is_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, pixels())
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("arr_0.npy", file.getvalue()[:-1])
    batches = open_images(tmp_path / "short.npz").batches(4)
    assert len(next(batches)) == 4
    with pytest.raises(ValueError, match=r"picture 4 of .*short\.npz cannot be read"):
        next(batches)


def test_other_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder"):
        open_images(tmp_path / "none")
    for name, message in (("a.npz", "damaged or of another format"), ("a.zip", r"no folder or \.npz file")):
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(ValueError, match=message):
            open_images(tmp_path / name)
