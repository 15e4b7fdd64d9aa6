"""Pictures in one file, a zip or an npz that the usual FID tools read; one of them is in memory at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from recap.files import written_whole

EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip file knows; a clock would make every file another one


def write_zip(path: Path, pictures: Sequence[Path]) -> None:
    """PNG files as they are, in this order."""
    with written_whole(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for picture in pictures:
            archive.writestr(_entry(picture.name), picture.read_bytes())


def write_npz(path: Path, pictures: Sequence[Path]) -> None:
    """`arr_0` of (n, height, width, 3) in uint8, picture after picture."""
    pixels: Iterator[np.ndarray] = map(_pixels, pictures)
    first = next(pixels)
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(pictures), *first.shape)}
    with (
        written_whole(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        archive.open(_entry("arr_0.npy"), "w", force_zip64=True) as array,
    ):
        np.lib.format.write_array_header_1_0(array, header)
        array.write(first.tobytes())
        for row in pixels:
            array.write(row.tobytes())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same wherever it is written
    return entry


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path, formats=("PNG",)) as picture:
        return np.asarray(picture.convert("RGB"))  # (H, W, 3)
