"""Images to evaluate: a folder or an npz file, read a batch at a time."""

import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from recap.checkpoints.safe_files import BAD_ARCHIVE, array_header, array_names, check_limit
from recap.view.pictures import open_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")

NamedPicture = tuple[str, np.ndarray]  # a name for messages, and (h, w, 3) of uint8


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images of one size in a fixed order, read anew each time `batches` is called."""

    count: int
    pictures: Callable[[], Iterator[NamedPicture]]

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int) -> Iterator[Tensor]:
        """Batches (B, 3, h, w) of float32 in [0, 1], of `size` images each; the last may be smaller."""
        pictures, first = self.pictures(), None
        while batch := list(islice(pictures, size)):
            first = first or batch[0]
            for name, pixels in batch:
                if pixels.shape != first[1].shape:
                    raise ValueError(
                        f"{first[0]} has {_size(first[1])} pixels and {name} has {_size(pixels)}; "
                        "expected pictures of one size, resize or crop them first"
                    )
            stacked = torch.from_numpy(np.stack([pixels for _, pixels in batch]))  # (B, h, w, 3)
            yield stacked.permute(0, 3, 1, 2).float().div_(255).contiguous()


def open_images(path: str | Path) -> ImageSet:
    """The images of a folder or an npz file.

    A folder is searched through all its sub-folders and sorted by relative path; files that are no pictures, and the
    shadow files of macOS, are ignored. An npz file holds `arr_0` or `images` of (n, h, w, 3) uint8.
    """
    path = Path(path)
    if path.is_dir():
        return _from_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a folder of pictures, or an npz file")
    if path.suffix.lower() != ".npz":
        raise ValueError(f"{path} is no folder or .npz file; give one of these")
    try:
        return _from_npz(path)
    except (OSError, *BAD_ARCHIVE) as error:  # also of places in the file that are not there
        raise ValueError(f"{path} cannot be read ({error}); it is damaged or of another format") from error


def _from_folder(folder: Path) -> ImageSet:
    names = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    shown = (name for name in names if name.suffix.lower() in SUFFIXES)
    # without the shadow files that macOS adds
    chosen = (name for name in shown if not any(part.startswith(("._", "__MACOSX")) for part in name.parts))
    files = [folder / name for name in sorted(chosen, key=Path.as_posix)]
    if not files:
        raise ValueError(f"{folder} holds no pictures; expected {', '.join(SUFFIXES)} files")
    return ImageSet(len(files), lambda: ((str(file), _decoded(file)) for file in files))


def _from_npz(path: Path) -> ImageSet:
    """Images from an array that is read row by row, as 50,000 of them may not fit into memory."""
    keys = array_names(path)
    key = next((key for key in ("arr_0", "images") if key in keys), None)
    if key is None:
        raise ValueError(f"{path} has {sorted(keys)}; expected arr_0 or images")

    def pictures() -> Iterator[NamedPicture]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            count, *shape = _header(stream, f"{key} in {path}")
            for i in range(count):
                name = f"picture {i} of {path}"
                try:
                    pixels = np.frombuffer(stream.read(math.prod(shape)), np.uint8).reshape(shape)
                except (OSError, ValueError, *BAD_ARCHIVE) as error:
                    raise ValueError(
                        f"{name} cannot be read ({error}); the file is damaged, write it again"
                    ) from error
                yield name, pixels

    with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
        return ImageSet(_header(stream, f"{key} in {path}")[0], pictures)


def _header(stream: IO[bytes], name: str) -> tuple[int, ...]:
    """The shape of an array of images; the stream is at its first byte afterwards."""
    shape, by_column, dtype = array_header(stream, name)
    if len(shape) != 4 or shape[-1] != 3 or min(shape) < 1 or dtype != np.uint8 or by_column:
        order = " in Fortran order" if by_column else ""
        raise ValueError(f"{name} is {shape} of {dtype}{order} but (n, h, w, 3) of uint8 is expected")
    check_limit("MOST_PIXELS", shape[1] * shape[2], f"{name} has pictures of {shape[2]}x{shape[1]} pixels")
    return shape


def _decoded(file: Path) -> np.ndarray:
    return np.asarray(open_picture(file, str(file)))  # (h, w, 3)


def _size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"
