"""A run as one sees it: what is decoded after every sub-step, which evaluation it came from, and what is left."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from recap.core.canvas import Canvas
from recap.core.schedule import Schedule
from recap.view.sheet import grid

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline as Pipeline


class TokenState(IntEnum):
    """What a token is after a sub-step."""

    MASKED = 0  # not decoded, and not about to be
    TARGET = 1  # in the target set of the group, to be decoded by its next local evaluations
    DRAWN = 2  # decoded in this sub-step
    CONTEXT = 3  # decoded before
    KNOWN = 4  # there before the run began


@dataclass(frozen=True, slots=True)
class Frame:
    """Images after one sub-step; it is a copy and stays as it is when the run goes on."""

    step: int  # sub-steps done, counted from 1
    group: int  # the group it belongs to, counted from 1
    evaluation: str  # what the tokens were drawn from: "full" or "local"
    decoded: int  # tokens there now, the known ones included
    tokens: Tensor  # (B, N) ids or (B, N, C) latents in raster order; without meaning where masked
    states: Tensor  # (B, N) `TokenState`s in raster order
    finite: Tensor  # (B) False for images that ran into NaN or inf
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
        return self.states <= TokenState.TARGET

    @property
    def images(self) -> list[Image.Image]:
        """The pictures so far, grey where nothing is decoded; the last frame's are those of the finished run."""
        return self.pipe.preview(self.tokens, self.masked)

    def __repr__(self) -> str:
        batch, tokens = self.states.shape
        return (
            f"<Frame {self.step} of {self.steps}: {self.position}, {self.decoded} of {tokens} tokens of "
            f"{batch} image{'s' * (batch > 1)} decoded>"
        )

    def _repr_png_(self) -> bytes:
        """What a notebook shows of it."""
        grid(self.images).save(file := io.BytesIO(), "PNG")
        return file.getvalue()


def frame_of(
    pipe: Pipeline, schedule: Schedule, step: int, canvases: Sequence[Canvas], counts: Sequence[int]
) -> Frame:
    """The frame after `step` sub-steps of a schedule, of the first `counts` images of each canvas."""
    contexts = enumerate(schedule.contexts(), 1)
    places = [(number, *context, index) for number, context in contexts for index in range(len(context[1].steps))]
    number, start, group, index = places[step - 1]
    drawn, target = group.steps[index].tokens, start + group.rows
    parts = (
        (canvas.raster()[:count], states_of(canvas, schedule.known, drawn, target)[:count], canvas.finite[:count])
        for canvas, count in zip(canvases, counts, strict=True)
    )
    tokens, states, finite = map(torch.cat, zip(*parts, strict=True))
    kind, decoded = "local" if index else "full", canvases[0].decoded
    return Frame(step, number, kind, decoded, tokens, states, finite, schedule, pipe)


@torch.inference_mode()
def states_of(canvas: Canvas, known: int, drawn: int, target: int) -> Tensor:
    """The states (B, N) of the tokens of a canvas: `drawn` tokens came last, those up to row `target` come next."""
    rows = torch.full_like(canvas.order, TokenState.MASKED, dtype=torch.uint8)
    rows[:, :target] = TokenState.TARGET
    rows[:, : canvas.decoded] = TokenState.DRAWN
    rows[:, : canvas.decoded - drawn] = TokenState.CONTEXT
    rows[:, :known] = TokenState.KNOWN
    return torch.empty_like(rows).scatter(1, canvas.order, rows)
