"""Smaller batches where memory ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from recap.core.memory import is_out_of_memory, release
from recap.view.progress import tqdm

__all__ = ["OutOfMemoryBackoff", "is_out_of_memory", "release"]
T = TypeVar("T")


class OutOfMemoryBackoff:
    """Draws indices in batches that are halved when memory ends."""

    def __init__(self, batch: int, device: torch.device, forget: Callable[[], None] = lambda: None) -> None:
        """`forget` lets go of what larger batches have left behind."""
        self.batch, self.device, self.forget = batch, device, forget

    def parts(self, count: int, draw: Callable[[range], T]) -> Iterator[tuple[range, T]]:
        """What `draw` gives for all of `count` indices, part by part."""
        first = 0
        while first < count:
            part = range(first, min(first + self.batch, count))
            reason = None
            try:
                result = draw(part)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.batch == 1:
                    raise MemoryError(
                        "there is no memory for one image; use --dtype bfloat16, fewer local evaluations, or a "
                        "device with more of it"
                    ) from error
                lines = str(error).splitlines() or ["no memory"]
                reason = ". ".join(lines[0].split(". ")[:2])  # CUDA goes on with advice
            if reason is not None:  # out here, where nothing holds on to the tensors of what failed
                failed, self.batch = self.batch, self.batch // 2
                self.forget()
                release(self.device)
                tqdm.write(
                    f"{failed} images at a time found no memory ({reason}); going on with {self.batch}",
                    file=sys.stderr,
                )
                continue
            yield part, result
            first = part.stop
