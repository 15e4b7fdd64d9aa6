"""Images by their numbers, the same whatever is drawn beside them.

On the CPU a matrix product of another size may be rounded otherwise: batches of 1, 3 and 8 images differ in the last
bits, and so in some pixels. There every image is computed alone. Elsewhere a batch is always filled up to the same
size, which keeps the kernels (and the captured graphs) the same for all of them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from recap.core.canvas import Canvas, UnsoundError
from recap.core.noise import image_generators, image_seed
from recap.core.schedule import Schedule
from recap.images import as_type
from recap.memory import Fitting
from recap.pipeline import Callback, Pipeline
from recap.timing import Stopwatch

Asked = Callable[
    [Sequence[int]], dict[str, Any]
]  # what a pipeline is asked for these images: labels, or their number


@dataclass(frozen=True, slots=True)
class Drawn:
    """Images (n, 3, H, W) in [0, 1], their numbers, and the numbers of those that came to nothing."""

    numbers: list[int]
    images: Tensor
    failed: list[int]

    def pictures(self) -> list[Image.Image]:
        pictures: list[Image.Image] = as_type(self.images, "pil")
        return pictures


class Audience(Protocol):
    """Sees images while they are drawn; the time that it takes does not count as theirs."""

    def step(self, numbers: Sequence[int], step: int, canvas: Canvas) -> None:
        """These images are drawn together, and sub-step number `step`, counted from 1, is done."""

    def done(self, numbers: Sequence[int], pictures: Sequence[Image.Image]) -> None:
        """These images are finished."""


def alone(pipe: Pipeline) -> bool:
    """Whether images are computed one at a time."""
    return pipe.device.type == "cpu"


def fitting_for(pipe: Pipeline, batch: int) -> Fitting:
    """How many images are computed together: all of a batch, or as many as memory turns out to have room for."""
    return Fitting(1 if alone(pipe) else batch, pipe.device, pipe.release)


def draw(
    pipe: Pipeline,
    asked: Asked,
    schedule: Schedule,
    seed: int,
    numbers: Sequence[int],
    fitting: Fitting,
    watch: Stopwatch,
    tick: Callable[[], object] = lambda: None,
    audience: Audience | None = None,
) -> Drawn:
    """Draw images of a run with `seed`; `tick` is called after every sub-step, and an audience sees all of it."""
    good: list[int] = []
    images: list[Tensor] = []

    def lot(part: range) -> tuple[Tensor, list[bool]]:
        own = [numbers[place] for place in part]
        filled = own + [own[-1]] * (fitting.most - len(own))

        def after(_: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> None:
            tick()
            if audience is not None:
                with watch.pause():
                    audience.step(own, step + 1, values["canvas"])

        with watch.measure("total"):
            return _draw(pipe, asked(filled), schedule, image_generators(seed, filled), after)

    for part, (drawn, sound) in fitting.parts(range(len(numbers)), lot):
        fine = sound[: len(part)]
        whole = [numbers[place] for place, fits in zip(part, fine, strict=True) if fits]
        good += whole
        images.append(drawn[: len(part)][torch.tensor(fine)])
        if audience is not None:
            audience.done(whole, as_type(images[-1], "pil"))
    kept = {*good}
    return Drawn(good, torch.cat(images), [number for number in numbers if number not in kept])


def _draw(
    pipe: Pipeline,
    asked: dict[str, Any],
    schedule: Schedule,
    generators: list[torch.Generator],
    after: Callback,
) -> tuple[Tensor, list[bool]]:
    """Images, and which of them are made of numbers."""
    try:
        output = pipe(
            **asked,
            schedule=schedule,
            generator=generators,
            output_type="pt",
            callback_on_step_end=after,
        )
        images, sound = output.images, torch.ones(len(generators), dtype=torch.bool)
    except UnsoundError as error:
        images, sound = pipe.decode(error.tokens, "pt"), error.sound.cpu()
    sound = sound & images.isfinite().flatten(1).all(dim=1).cpu()
    return images, sound.tolist()


def png(picture: Image.Image) -> bytes:
    """The bytes of a PNG file."""
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


def failure(failed: Sequence[int], seed: int, where: str) -> FloatingPointError:
    """What to say of images that came to nothing."""
    named = ", ".join(f"image {i} (own seed {image_seed(seed, i)})" for i in failed)
    return FloatingPointError(
        f"{named} of seed {seed} ran into values that are no numbers; {where}. Use bfloat16 or float32 instead of "
        f"float16, or a lower guidance scale"
    )
