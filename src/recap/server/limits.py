"""How much a client may ask for; needs no extra."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any


def limit(usual: float, about: str) -> Any:
    """A field with the words that the command line has for it."""
    return field(default=usual, metadata={"about": about})


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that keep a server standing, whatever comes; a GPU may round otherwise with another `batch`."""

    batch: int = limit(8, "images drawn at a time")
    queue: int = limit(64, "images that may wait; more are answered 429")
    timeout: float = limit(60.0, "seconds for one request")
    grace: float = limit(30.0, "seconds for accepted work after the signal to stop")
    reading: float = limit(20.0, "seconds for a request to come, and again for its body")
    sending: float = limit(20.0, "seconds for an answer to be taken")
    connections: int = limit(512, "connections at a time, or fewer if fewer files may be open")
    max_images: int = limit(16, "images of one request")
    max_steps: int = limit(256, "evaluations of one image, full and local")
    max_pixels: int = limit(2**24, "pixels of a picture that is sent")
    max_body: int = limit(2**23, "bytes of one request with a picture")
    max_held: int = limit(2**26, "bytes of pictures in all requests together; more are answered 429")

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (0 < value < math.inf):
                raise ValueError(f"--{each.name.replace('_', '-')} is {value}; it must be a positive number")
        if self.max_images > self.queue:
            raise ValueError(
                f"--max-images is {self.max_images} but only {self.queue} may wait; "
                f"raise --queue or lower --max-images"
            )
