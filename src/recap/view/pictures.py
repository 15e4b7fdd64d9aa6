"""Picture files from outside, read by one function for all who take any: sizes first, pixels after."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from recap.checkpoints.safe_files import check_limit

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # that are read from files; decoders of rare ones are rarely looked after
DEEP = ("I;16", "I;16L", "I;16B", "I;16N")  # modes of 16 bits
ORIENTATION = 0x0112  # of EXIF, and how a picture is turned for each
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
LYING = (5, 6, 7, 8)  # those that swap width and height
SizeCheck = Callable[[tuple[int, int], str], None]


class UnreadablePicture(ValueError):
    """A file that is no picture, or a damaged or too large one."""


def open_picture(
    file: str | Path | IO[bytes],
    name: str,
    *,
    upright: bool = False,
    formats: Collection[str] = FORMATS,
    check: SizeCheck = lambda *_: None,
) -> Image.Image:
    """The first picture in a file, in RGB of 8 bits; `upright` turns it as EXIF says.

    Its width and height as they will be, and its format, are given to `check` before any pixel is decoded, and more
    pixels than `recap.checkpoints.safe_files` allows are refused.
    """
    with _reading(name):
        image = Image.open(file, formats=list(formats))
    with image:
        with _reading(name):
            turned = image.getexif().get(ORIENTATION) if upright else None
            width, height = image.size
        check((height, width) if turned in LYING else (width, height), str(image.format))
        with _reading(name):
            check_limit("MOST_PIXELS", width * height, f"it has {width}x{height} pixels")
            image.load()
            picture = eight_bits(image, deep=True)
            picture = picture if picture.mode == "RGB" else picture.convert("RGB")
            # by hand: Pillow would write the rest of the EXIF anew, and fails where that is odd
            return picture.transpose(UPRIGHT[turned]) if turned in UPRIGHT else picture


def eight_bits(image: Image.Image, *, deep: bool = False) -> Image.Image:
    """A picture whose channels have 8 bits; Pillow itself cuts larger values off.

    Integers of 32 bits are only known to mean 16, as in files, if they are `deep`.
    """
    if image.mode in DEEP or (deep and image.mode == "I"):
        values = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"a picture of mode {image.mode!r} has no known white; convert it to L or RGB")
    return image


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Decoders fail on damaged files in any way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd files: what matters is an error, and transparency is dropped
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, PermissionError):
            raise
        except Exception as error:
            raise UnreadablePicture(
                f"{name} is no readable picture ({error}); remove or replace it with a {', '.join(FORMATS)} file"
            ) from error
