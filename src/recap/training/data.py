"""Photos to train on: all of them in memory, as 8-bit tensors."""

from __future__ import annotations

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recap.checkpoints.safe_files import read_arrays
from recap.view.images import offsets_fit, open_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class DataError(ValueError):
    """Data that cannot be trained on."""


@dataclass(frozen=True, slots=True)
class Photos:
    """Square pictures of one size with a class each."""

    pixels: Tensor  # (n, 3, s, s) uint8
    labels: Tensor  # (n) int64

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def to(self, device: torch.device | str) -> Photos:
        return Photos(self.pixels.to(device), self.labels.to(device))


def read_photos(path: str | Path) -> Photos:
    """Photos from an npz file (`bytes`, `offsets`, `labels`, or `images`, `labels`) or a folder.

    In a folder, every sub-folder is a class, in alphabetical order; pictures directly inside are one class.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; give an npz file or a folder of pictures")
    try:
        arrays = read_arrays(path)
    except ValueError as error:
        raise DataError(str(error)) from error
    if {"bytes", "offsets", "labels"} <= arrays.keys():
        raw, offsets = arrays["bytes"], arrays["offsets"]
        if not offsets_fit(raw, offsets):
            raise DataError(f"{path} has offsets that do not cut its bytes into pictures; write the file again")
        blobs = [raw[a:b].tobytes() for a, b in pairwise(offsets)]
        pictures = [_decode(blob, f"picture {i} of {path}") for i, blob in enumerate(blobs)]
        return _stacked(pictures, arrays["labels"], path)
    if {"images", "labels"} <= arrays.keys():
        images = arrays["images"]
        if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != np.uint8:
            raise DataError(f"{path}: images are {images.shape} of {images.dtype}; expected (n, s, s, 3) of uint8")
        return _stacked(list(images), arrays["labels"], path)
    raise DataError(f"{path} has {sorted(arrays)}; expected bytes, offsets and labels, or images and labels")


def _from_folder(folder: Path) -> Photos:
    classes = sorted(p for p in folder.iterdir() if p.is_dir()) or [folder]
    pictures, labels = [], []
    for label, place in enumerate(classes):
        for file in sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES):
            pictures.append(_decode(file.read_bytes(), str(file)))
            labels.append(label)
    return _stacked(pictures, np.asarray(labels), folder)


def _decode(blob: bytes, name: str) -> np.ndarray:
    try:
        return np.asarray(open_picture(io.BytesIO(blob), name).convert("RGB"))
    except ValueError as error:
        raise DataError(str(error)) from error


def _stacked(pictures: list[np.ndarray], labels: np.ndarray, path: Path) -> Photos:
    if not pictures:
        raise DataError(f"{path} holds no pictures ({', '.join(SUFFIXES)})")
    shapes = {picture.shape for picture in pictures}
    height, width = pictures[0].shape[:2]
    if len(shapes) > 1 or height != width:
        raise DataError(
            f"{path} holds pictures of {sorted(shapes)[:3]}; expected squares of one size, crop them first"
        )
    if labels.shape != (len(pictures),) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise DataError(
            f"{path} has {len(pictures)} pictures and labels of shape {labels.shape}; one class number each"
        )
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()  # (n, 3, s, s)
    return Photos(pixels, torch.from_numpy(labels.astype(np.int64)))
