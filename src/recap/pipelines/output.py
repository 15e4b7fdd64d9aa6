"""What a call returns, and how it is brought together from the images that are drawn one batch after another."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from recap.core.canvas import Canvas
from recap.core.schedule import Schedule
from recap.runs.draw import begin, draw, images_together
from recap.runs.works import NOT_FINITE, Done, Failed, Work
from recap.view.frames import Frame, frame_of
from recap.view.images import as_type
from recap.view.progress import tqdm
from recap.view.sheet import grid

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline
    from recap.pipelines.pipeline import Callback, Pipeline

SHOWN = 16  # images that a notebook is shown of a result


@dataclass(frozen=True, slots=True)
class Output:
    """What a call returns: images in the form asked for, tokens in raster order, and what was run."""

    images: Any
    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    schedules: tuple[Schedule, ...]  # one for each image
    names: tuple[str, ...] | None = None  # what each image was to show, where the model has classes
    masked: Tensor | None = None  # (B, N) True where a token was drawn anew, after an edit

    @property
    def schedule(self) -> Schedule:
        """How the first image was drawn; the others likewise, but where edits of different sizes go together."""
        return self.schedules[0]

    def __repr__(self) -> str:
        count, tokens = len(self.tokens), self.tokens.shape[1]
        what = f"{count} image{'s' * (count != 1)}" if self.images is not self.tokens else f"tokens of {count} images"
        drawn = ""
        if self.masked is not None:
            low, high = self.masked.sum(dim=1).aminmax()
            drawn = f", {low}{f' to {high}' * bool(low < high)} of them drawn anew"
        evaluations = " and ".join(dict.fromkeys(map(str, self.schedules)))
        return f"<Output: {what}, {tokens} tokens each{drawn}, {evaluations} evaluations>"

    def _repr_png_(self) -> bytes | None:
        """What a notebook shows of it."""
        first = self.images[:SHOWN]
        if self.images is self.tokens:
            return None
        if isinstance(first, np.ndarray):
            first = torch.from_numpy(first).permute(0, 3, 1, 2)
        pictures: list[Image.Image] = as_type(first, "pil") if isinstance(first, Tensor) else list(first)
        grid(pictures).save(file := io.BytesIO(), "PNG")
        return file.getvalue()


class Call:
    """Tells a progress bar and a callback what is drawn for a call."""

    def __init__(self, pipe: ModelPipeline, works: Sequence[Work], callback: Any) -> None:
        self.pipe, self.works, self.callback = pipe, works, callback
        names = " and ".join(dict.fromkeys(str(work.schedule) for work in works))
        total = sum(len(work.schedule.steps) for work in works)
        self.bar = tqdm(total=total, desc=f"decoding {names}", unit="step", disable=not pipe.progress)

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        self.bar.update(len(works))
        if self.callback is None:
            return
        values = {"canvas": canvas, "images": [self.works.index(work) for work in works]}
        answer = self.callback(self.pipe, step - 1, canvas.decoded, values)
        if not isinstance(answer, Mapping):
            return
        unknown = set(answer) - {*values, "tokens"}
        if unknown or answer.get("canvas", canvas) is not canvas:
            what = ", ".join(sorted(map(str, unknown))) or "another canvas"
            raise ValueError(f'callback_on_step_end returned {what}; it may return "tokens" in raster order, or None')
        if "tokens" in answer:
            canvas.overwrite(answer["tokens"])

    def done(self, results: Sequence[Done | Failed]) -> None:
        """Nothing to tell: whoever calls hears of all results together."""


def collect(pipe: Pipeline, works: Sequence[Work], output_type: str, callback: Callback | None = None) -> Output:
    """Draw all works and bring them together, in their order."""
    call = Call(pipe, works, callback)
    with call.bar:
        results = {result.work: result for result in draw(pipe, works, call, decode=output_type != "latent")}
    ordered = [results[work] for work in works]
    if failed := [place for place, result in enumerate(ordered) if isinstance(result, Failed)]:
        raise FloatingPointError(f"image(s) {failed} of the batch {NOT_FINITE}")
    images: Any = torch.stack([result.tokens for result in ordered])
    tokens = images
    if output_type != "latent":
        pixels = [result.pixels for result in ordered if isinstance(result, Done) and result.pixels is not None]
        images = as_type(torch.stack(pixels), output_type)
    masked = [work.start.masked for work in works if work.start is not None]
    names = [pipe.name_of(work.label) for work in works if work.label is not None]
    schedules = tuple(work.schedule for work in works)
    return Output(images, tokens, schedules, tuple(names) or None, torch.stack(masked) if masked else None)


def frames(pipe: ModelPipeline, works: Sequence[Work]) -> Iterator[Frame]:
    """A frame of all works, which have one schedule, after every sub-step."""
    schedule = works[0].schedule
    size = images_together(pipe, schedule)
    lots = [works[first : first + size] for first in range(0, len(works), size)]
    runs = [begin(pipe, lot, size) for lot in lots]
    for step in range(1, len(schedule.steps) + 1):
        yield frame_of(pipe, schedule, step, [next(run) for run in runs], list(map(len, lots)))
