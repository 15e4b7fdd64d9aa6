"""What a client may ask for, and how a refusal is said; needs no extra."""

from __future__ import annotations

import base64
import binascii
import io
import math
from dataclasses import dataclass, fields

from PIL import Image, ImageOps, UnidentifiedImageError

from recap.core.options import SamplingOptions

FORMATS = ("PNG", "JPEG", "WEBP")  # of pictures that come from outside; each other one is one more parser to trust


class ApiError(Exception):
    """An answer that is no image: its status, a word for programs, and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that keep a server standing, whatever comes."""

    batch: int = 8  # images drawn at a time; as many as `recap sample` draws, or a GPU may round otherwise
    queue: int = 64  # images that may wait
    timeout: float = 60.0  # seconds for one request
    grace: float = 30.0  # seconds for accepted work after the signal to stop
    max_images: int = 16  # of one request
    max_steps: int = 256  # evaluations of one image, full and local
    max_pixels: int = 2**24  # of a picture that is sent
    max_body: int = 2**23  # bytes of one request
    max_kept: int = 2**26  # bytes of the page's finished runs
    max_models: int = 3  # in memory at a time

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (0 < value < math.inf):
                raise ValueError(f"--{field.name.replace('_', '-')} is {value}; it must be a positive number")
        if self.max_images > self.queue:
            raise ValueError(
                f"--max-images is {self.max_images} but only {self.queue} may wait; "
                f"raise --queue or lower --max-images"
            )

    def check(self, images: int, options: SamplingOptions) -> None:
        """Refuse more than one request may have, before anything of it is made."""
        if images > self.max_images:
            raise ApiError(
                422,
                "limit",
                f"{images} images were asked for, but {self.max_images} are allowed at a time; ask for fewer",
            )
        steps = (options.full or 0) + (options.local or 0)
        if steps > self.max_steps:
            raise ApiError(
                422,
                "limit",
                f"{steps} evaluations an image were asked for, but {self.max_steps} are allowed; ask for less",
            )


def picture(data: str, name: str, most: int) -> tuple[Image.Image, bytes]:
    """The upright picture in base64 text and its file, the size checked before any pixel is unpacked."""
    try:
        file = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _unusable(name, f"is no base64 ({error})") from error
    try:
        with Image.open(io.BytesIO(file), formats=FORMATS) as opened:
            if opened.width * opened.height > most:
                raise _unusable(
                    name, f"has {opened.width} x {opened.height} pixels, more than the {most} allowed here"
                )
            return ImageOps.exif_transpose(opened), file
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _unusable(name, f"has more than the {most} pixels allowed here") from error
    except UnidentifiedImageError as error:
        raise _unusable(name, f"({len(file)} bytes) is no picture") from error
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError, OverflowError, IndexError) as error:
        raise _unusable(name, f"({len(file)} bytes) is damaged") from error  # what Pillow's parsers raise


def _unusable(name: str, what: str) -> ApiError:
    return ApiError(422, "picture", f"the {name} {what}; send a whole {', '.join(FORMATS)} file as base64 text")
