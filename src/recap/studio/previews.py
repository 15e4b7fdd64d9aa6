"""Pictures of a run under way, as many as take no more than a share of its time."""

from __future__ import annotations

import io

from PIL import Image

from recap.clock import now
from recap.frames import Frame

SHARE = 0.5  # of a lane's own clock that its previews may take
QUALITY = 80  # of WebP


class Previews:
    """Shows frames of one lane while there is time for it."""

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.seconds = 0.0  # spent so far
        self.cost = 0.0  # of the latest

    def affordable(self, clock: float) -> bool:
        """Whether one more stays within the share; the first always does."""
        return not self.seconds or self.seconds + self.cost <= self.share * clock

    def of(self, frame: Frame, images: int, clock: float) -> list[bytes | None]:
        """A picture of each of the first `images`, or nothing if that would take too long."""
        if not self.affordable(clock):
            return [None] * images
        began = now(frame.pipe.device)
        pictures = frame.pipe.preview(frame.tokens[:images], frame.masked[:images])
        files: list[bytes | None] = [webp(picture) for picture in pictures]
        self.cost = now(frame.pipe.device) - began
        self.seconds += self.cost
        return files


def webp(picture: Image.Image) -> bytes:
    """A small file of a picture, made quickly."""
    picture.save(file := io.BytesIO(), "WEBP", quality=QUALITY, method=0)
    return file.getvalue()
