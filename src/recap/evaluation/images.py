"""Images to evaluate: a folder, a zip or an npz file, read a batch at a time."""

import io
import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MOST_PIXELS = 64_000_000  # of one picture; a small file can claim to be any size
MOST_BYTES = 8 * MOST_PIXELS  # of one picture inside a zip file, for the same reason

_TOO_LARGE = "{}x{} pixels, " + f"and at most {MOST_PIXELS:,} pixels are read; resize it first"
# the ways in which decoders fail on damaged files
_FAILURES = (
    *(OSError, ValueError, SyntaxError, EOFError, LookupError, TypeError),
    *(struct.error, zlib.error, Image.DecompressionBombError),
)

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
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
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
    if (size := archive.getinfo(member).file_size) > MOST_BYTES:
        raise ValueError(f"{name} unpacks to {size:,} bytes; at most {MOST_BYTES:,} are read, resize the picture")
    try:
        with archive.open(member) as stream:
            return _decoded(stream, name)
    except (zipfile.BadZipFile, RuntimeError) as error:  # a wrong header or sum; a password
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
    with zipfile.ZipFile(path) as archive:
        keys = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
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
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{name} cannot be read ({error}); the file is damaged, write it again") from error


def _header(stream: IO[bytes], path: Path, key: str) -> tuple[int, ...]:
    """The shape of an array of images; the stream is at its first byte afterwards."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(stream)
    except ValueError as error:
        raise ValueError(f"{key} in {path} is no readable array ({error}); write it with numpy.savez") from error
    if len(shape) != 4 or shape[-1] != 3 or min(shape) < 1 or dtype != np.uint8 or by_column:
        raise ValueError(
            f"{key} in {path} is {shape} of {dtype}{' in Fortran order' if by_column else ''} "
            "but (n, h, w, 3) of uint8 is expected"
        )
    if shape[1] * shape[2] > MOST_PIXELS:
        raise ValueError(f"{key} in {path} has pictures of {_TOO_LARGE.format(shape[2], shape[1])}")
    return shape


def _from_encoded(path: Path) -> ImageSet:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            raw, offsets = arrays["bytes"], arrays["offsets"]
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); it is damaged or of another format") from error
    fits = raw.ndim == offsets.ndim == 1 and raw.dtype == np.uint8 and offsets.dtype.kind in "iu" and len(offsets) > 0
    places = [int(offset) for offset in offsets] if fits else [-1]
    if places[0] < 0 or places[-1] > len(raw) or any(a > b for a, b in pairwise(places)):
        raise ValueError(
            f"{path} has bytes {raw.shape} of {raw.dtype} and offsets {offsets.shape} of {offsets.dtype} that do not "
            "fit; expected uint8, and rising integers that say where each picture starts and the last one ends"
        )

    def pictures() -> Iterator[Picture]:
        for i, (start, end) in enumerate(pairwise(places)):
            name = f"picture {i} of {path}"
            yield name, _decoded(io.BytesIO(raw[start:end].tobytes()), name)

    return ImageSet(path, len(places) - 1, pictures)


def _decoded(stream: IO[bytes], name: str) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is stricter
        warnings.filterwarnings("ignore", "Palette images with Transparency", UserWarning)  # transparency is dropped
        try:
            with Image.open(stream, formats=FORMATS) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise ValueError(_TOO_LARGE.format(width, height))
                if image.mode.startswith(("I", "F")):
                    raise ValueError(f"its mode is {image.mode}, and 8 bits for a channel are expected")
                return np.asarray(image.convert("RGB"))  # (h, w, 3)
        except _FAILURES as error:
            raise ValueError(f"{name} is no readable picture ({error}); remove or replace it") from error


def _stacked(batch: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(batch)).permute(0, 3, 1, 2).float().div_(255).contiguous()  # (B, 3, h, w)


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"
