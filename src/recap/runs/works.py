"""Images as work to do: all that decides what an image looks like, checked before it is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from recap.core.schedule import Schedule
from recap.view.images import as_type

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline as Pipeline

NOT_FINITE = "ran into NaN or inf; use bfloat16 or float32 instead of float16, or a lower guidance scale"


@dataclass(slots=True, eq=False)
class Start:
    """Where an image begins: what is known of it, and what is to be drawn anew."""

    masked: Tensor  # (N) True where a token is drawn
    pixels: Tensor | None = None  # (3, H, W), of which the tokens are read when they are wanted
    white: Tensor | None = None  # (H, W) where given, pixels that are not white are put back at the end
    tokens: Tensor | None = None  # (N) or (N, C)

    def read(self, pipe: Pipeline) -> Tensor:
        """The tokens, read once."""
        if self.tokens is None:
            assert self.pixels is not None
            self.tokens = pipe.encode(self.pixels)[0]
        return self.tokens

    def paste(self, pixels: Tensor) -> Tensor:
        """A finished image (3, H, W) with the pixels that were to stay."""
        if self.white is None:
            return pixels
        assert self.pixels is not None
        return torch.where(self.white.to(pixels.device), pixels, self.pixels.to(pixels.device))


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One image to draw: number `index` of a run, with a random stream of its own.

    Images of equal `kind` can be drawn together.
    """

    schedule: Schedule
    index: int
    key: int  # of the random stream
    seed: int | None = None  # of the run, where the key comes from one
    label: int | None = None
    order: str | None = None  # None for the model's own
    start: Start | None = None
    block: int | None = None  # tokens of a block of text
    stop: int | None = None  # the id that ends a text: nothing behind it is wanted
    noun: str = "image"  # what it is, for people

    @property
    def kind(self) -> tuple[object, ...]:
        return self.schedule, self.order, self.block, self.stop


@dataclass(frozen=True, slots=True, eq=False)
class Done:
    """A finished image: pixels (3, H, W) in [0, 1] where they were asked for, and tokens in raster order."""

    work: Work
    tokens: Tensor  # (N) or (N, C)
    pixels: Tensor | None

    @property
    def image(self) -> Image.Image:
        assert self.pixels is not None
        picture: Image.Image = as_type(self.pixels.unsqueeze(0), "pil")[0]
        return picture


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An image that ran into NaN or inf."""

    work: Work
    tokens: Tensor

    def __str__(self) -> str:
        of = "" if self.work.seed is None else f" of seed {self.work.seed}"
        return f"{self.work.noun} {self.work.index}{of} {NOT_FINITE}"
