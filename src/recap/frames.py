"""A run as one sees it: what is decoded after every sub-step, which evaluation it came from, and what is left."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from recap.clock import now
from recap.core.canvas import Canvas
from recap.core.schedule import Schedule
from recap.pictures import grid

if TYPE_CHECKING:
    from recap.pipeline import Pipeline


class Cell(IntEnum):
    """What a token is after a sub-step."""

    MASKED = 0  # not decoded, and not about to be
    TARGET = 1  # in the target set of the group, to be decoded by its next local evaluations
    DRAWN = 2  # decoded in this sub-step
    CONTEXT = 3  # decoded before
    KNOWN = 4  # there before the run began


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch after one sub-step; it is a copy and stays as it is when the run goes on.

    `seconds` is the time that decoding took so far; what is done with frames between the sub-steps does not count.
    """

    step: int  # sub-steps done, counted from 1
    group: int  # the group it belongs to, counted from 1
    evaluation: str  # what the tokens were drawn from: "full" or "local"
    decoded: int  # tokens there now, the known ones included
    seconds: float
    tokens: Tensor  # (B, N) ids or (B, N, C) latents in raster order; without meaning where masked
    cells: Tensor  # (B, N) `Cell`s in raster order
    sound: Tensor  # (B) False for images that ran into values that are no numbers
    schedule: Schedule
    pipe: Pipeline

    @property
    def steps(self) -> int:
        """Sub-steps of the whole run."""
        return len(self.schedule.steps)

    @property
    def last(self) -> bool:
        return self.step == self.steps

    @property
    def position(self) -> str:
        """Which evaluation it comes from, as in "local 17 of 32"."""
        if self.evaluation == "full":
            return f"full {self.group} of {self.schedule.full}"
        return f"local {self.step - self.group} of {self.schedule.local}"  # every group before has its full one

    @property
    def masked(self) -> Tensor:
        """True where nothing is decoded yet (B, N)."""
        return self.cells <= Cell.TARGET

    @property
    def images(self) -> list[Image.Image]:
        """The pictures so far, grey where nothing is decoded; the last frame's are those of the finished run."""
        return self.pipe.preview(self.tokens, self.masked)

    def __repr__(self) -> str:
        batch, tokens = self.cells.shape
        return (
            f"<Frame {self.step} of {self.steps}: {self.position}, {self.decoded} of {tokens} tokens of "
            f"{batch} image{'s' * (batch > 1)} decoded in {self.seconds:.2f} s>"
        )

    def _repr_png_(self) -> bytes:
        """What a notebook shows of it."""
        grid(self.images).save(file := io.BytesIO(), "PNG")
        return file.getvalue()


def frames_of(pipe: Pipeline, canvases: Iterable[Canvas], schedule: Schedule) -> Iterator[Frame]:
    """A frame for every sub-step of a run, which goes on only when the next one is asked for."""
    seconds, began = 0.0, now(pipe.device)
    for (place, canvas), _ in zip(enumerate(canvases, 1), schedule.steps, strict=True):
        seconds += now(pipe.device) - began
        yield frame_of(pipe, canvas, schedule, place, seconds)
        began = now(pipe.device)


def frame_of(pipe: Pipeline, canvas: Canvas, schedule: Schedule, step: int, seconds: float) -> Frame:
    """The frame of a canvas after `step` sub-steps of a schedule."""
    places = (
        (number, index, start, group)
        for number, (start, group) in enumerate(schedule.contexts(), 1)
        for index in range(len(group.steps))
    )
    number, index, start, group = next(islice(places, step - 1, None))
    return Frame(
        step=step,
        group=number,
        evaluation="local" if index else "full",
        decoded=canvas.decoded,
        seconds=seconds,
        tokens=canvas.raster(),
        cells=cells_of(canvas, schedule.known, group.steps[index].tokens, start + group.tokens),
        sound=canvas.sound.clone(),
        schedule=schedule,
        pipe=pipe,
    )


@torch.inference_mode()
def cells_of(canvas: Canvas, known: int, drawn: int, target: int) -> Tensor:
    """The cells (B, N) of a canvas: `drawn` tokens came last, and those before row `target` come next."""
    rows = torch.full_like(canvas.order, Cell.MASKED, dtype=torch.uint8)
    rows[:, :target] = Cell.TARGET
    rows[:, : canvas.decoded] = Cell.DRAWN
    rows[:, : canvas.decoded - drawn] = Cell.CONTEXT
    rows[:, :known] = Cell.KNOWN
    return torch.empty_like(rows).scatter(1, canvas.order, rows)
