"""Images to evaluate: a folder, a zip or an npz file, read a batch at a time."""

import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from torch import Tensor

from recap.checkpoints.safe_files import BAD_ARCHIVE, array_header, array_names, check_limit, read_arrays
from recap.view.images import offsets_fit, open_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")

Picture = tuple[str, np.ndarray]  # a name for messages, and (h, w, 3) of uint8


class ImageSet:
    """Images of one size in a fixed order, read anew each time `batches` is called."""

    def __init__(self, path: Path, count: int, pictures: Callable[[], Iterator[Picture]]) -> None:
        if count == 0:
            raise ValueError(f"{path} holds no pictures; expected {', '.join(SUFFIXES)} files, or an array of images")
        self.path = path
        self._count, self._pictures = count, pictures

    def __len__(self) -> int:
        return self._count

    def batches(self, size: int) -> Iterator[Tensor]:
        """Batches (B, 3, h, w) of float32 in [0, 1], of `size` images each; the last may be smaller."""
        if size < 1:
            raise ValueError(f"batches of {size} images were asked for but 1 or more is expected")
        return self._batches(size)

    def _batches(self, size: int) -> Iterator[Tensor]:
        batch: list[np.ndarray] = []
        first: Picture | None = None
        for name, pixels in self._pictures():
            first = first or (name, pixels)
            if pixels.shape != first[1].shape:
                raise ValueError(
                    f"{first[0]} has {_size(first[1])} pixels and {name} has {_size(pixels)}; "
                    "expected pictures of one size, resize or crop them first"
                )
            batch.append(pixels)
            if len(batch) == size:
                yield _stacked(batch)
                batch = []
        if batch:
            yield _stacked(batch)


def open_images(path: str | Path) -> ImageSet:
    """The images of a folder, a zip file or an npz file.

    A folder is searched through all its sub-folders and sorted by relative path, a zip file by the names inside;
    files that are no pictures, and the shadow files of macOS, are ignored. An npz file holds `arr_0` or `images` of
    (n, h, w, 3) uint8, or encoded pictures one after the other as `bytes` and `offsets`.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a folder of pictures, a zip or an npz file")
    if path.suffix.lower() not in (".zip", ".npz"):
        raise ValueError(f"{path} is no folder, .zip or .npz file; give one of these")
    try:
        return _from_npz(path) if path.suffix.lower() == ".npz" else _from_zip(path)
    except (OSError, *BAD_ARCHIVE) as error:  # also of places in the file that are not there
        raise ValueError(f"{path} cannot be read ({error}); it is damaged or of another format") from error


def _from_folder(folder: Path) -> ImageSet:
    names = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
    files = [names[name] for name in _chosen(names)]

    def pictures() -> Iterator[Picture]:
        for file in files:
            with file.open("rb") as stream:
                yield str(file), _decoded(stream, str(file))

    return ImageSet(folder, len(files), pictures)


def _from_zip(path: Path) -> ImageSet:
    with zipfile.ZipFile(path) as archive:
        members = _chosen(set(archive.namelist()))

    def pictures() -> Iterator[Picture]:
        with zipfile.ZipFile(path) as archive:  # members are read in place: nothing is written, whatever their names
            for member in members:
                name = f"{member} in {path}"
                yield name, _from_member(archive, member, name)

    return ImageSet(path, len(members), pictures)


def _from_member(archive: zipfile.ZipFile, member: str, name: str) -> np.ndarray:
    size = archive.getinfo(member).file_size  # more than it says is never unpacked
    check_limit("MOST_PICTURE_BYTES", size, f"{name} unpacks to {size:,} bytes")
    try:
        with archive.open(member) as stream:
            return _decoded(stream, name)
    except (OSError, *BAD_ARCHIVE) as error:  # a wrong header or sum; a password
        raise ValueError(f"{name} cannot be read ({error}); replace it") from error


def _chosen(names: Iterable[str]) -> list[str]:
    """The names of pictures among those of all files, sorted, without the shadow files macOS adds."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(SUFFIXES)
        and not any(part.startswith(("._", "__MACOSX")) for part in PurePosixPath(name).parts)
    )


def _from_npz(path: Path) -> ImageSet:
    keys = array_names(path)
    for key in ("arr_0", "images"):
        if key in keys:
            return _from_array(path, key)
    if {"bytes", "offsets"} <= keys:
        return _from_encoded(path)
    raise ValueError(f"{path} has {sorted(keys)}; expected arr_0 or images, or bytes and offsets")


def _from_array(path: Path, key: str) -> ImageSet:
    """Images from an array that is read row by row, as 50,000 of them may not fit into memory."""

    def pictures() -> Iterator[Picture]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            count, *shape = _header(stream, path, key)
            for i in range(count):
                name = f"picture {i} of {path}"
                yield name, _row(stream, shape, name)

    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
        count = _header(stream, path, key)[0]
    return ImageSet(path, count, pictures)


def _row(stream: IO[bytes], shape: list[int], name: str) -> np.ndarray:
    try:
        return np.frombuffer(stream.read(math.prod(shape)), np.uint8).reshape(shape)
    except (OSError, ValueError, *BAD_ARCHIVE) as error:
        raise ValueError(f"{name} cannot be read ({error}); the file is damaged, write it again") from error


def _header(stream: IO[bytes], path: Path, key: str) -> tuple[int, ...]:
    """The shape of an array of images; the stream is at its first byte afterwards."""
    shape, by_column, dtype = array_header(stream, f"{key} in {path}")
    if len(shape) != 4 or shape[-1] != 3 or min(shape) < 1 or dtype != np.uint8 or by_column:
        raise ValueError(
            f"{key} in {path} is {shape} of {dtype}{' in Fortran order' if by_column else ''} "
            "but (n, h, w, 3) of uint8 is expected"
        )
    check_limit("MOST_PIXELS", shape[1] * shape[2], f"{key} in {path} has pictures of {shape[2]}x{shape[1]} pixels")
    return shape


def _from_encoded(path: Path) -> ImageSet:
    arrays = read_arrays(path, ("bytes", "offsets"))
    raw, offsets = arrays["bytes"], arrays["offsets"]
    if not offsets_fit(raw, offsets):
        raise ValueError(
            f"{path} has bytes {raw.shape} of {raw.dtype} and offsets {offsets.shape} of {offsets.dtype} that do not "
            "fit; expected uint8, and rising integers that say where each picture starts and the last one ends"
        )

    def pictures() -> Iterator[Picture]:
        for i, (start, end) in enumerate(pairwise(offsets)):
            name = f"picture {i} of {path}"
            yield name, _decoded(io.BytesIO(raw[start:end].tobytes()), name)

    return ImageSet(path, len(offsets) - 1, pictures)


def _decoded(stream: IO[bytes], name: str) -> np.ndarray:
    image = open_picture(stream, name)
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"{name} is no readable picture (its mode is {image.mode}, and 8 bits for a channel are expected); "
            f"remove or replace it"
        )
    return np.asarray(image.convert("RGB"))  # (h, w, 3)


def _stacked(batch: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2).float().div_(255).contiguous()  # (B, 3, h, w)


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"
