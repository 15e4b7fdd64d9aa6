"""What a request asks for, image by image, and how a batch of images is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from recap.core.canvas import Canvas, Known
from recap.core.noise import image_generators
from recap.core.presets import Grouping, usual_guidance
from recap.core.schedule import Ramp, Schedule
from recap.images import as_type, batch_of, box_mask, fit, masks_of, token_mask
from recap.labels import find_class
from recap.pipeline import Pipeline
from recap.serving.limits import Limits, Refused

Wanted = Callable[["Work"], bool]  # whether somebody still waits for an image
Result = Image.Image | Refused


@dataclass(slots=True)
class Start:
    """A picture and what is to be drawn anew in it; its tokens are read once, by the thread of the model."""

    pixels: Tensor  # (1, 3, H, W)
    white: Tensor  # (1, H, W) True where pixels are to be drawn
    masked: Tensor  # (1, N) and which tokens that means
    paste: bool
    tokens: Tensor | None = None  # (1, N) or (1, N, C)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One image: number `index` of a run with `seed`. Images of one schedule can be drawn together."""

    schedule: Schedule
    label: int | None
    seed: int
    index: int
    start: Start | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """How images are to be drawn, as the command line says it; None leaves a value to the model."""

    full: int | None = None
    local: int | None = None
    total: int | None = None
    plain: int | None = None
    chain: int = 1
    guidance: float | Ramp | None = None
    temperature: float | None = None


def schedule_of(pipe: Pipeline, wish: Wish, limits: Limits, known: int = 0) -> Schedule:
    """The schedule that a wish means; one that is too long is refused before it is built."""
    asked = wish.total if wish.total is not None else (wish.full or 0) + (wish.local or 0)
    if asked > limits.max_steps:
        raise Refused(
            422,
            "limit",
            f"{asked} evaluations an image were asked for, but {limits.max_steps} are allowed; ask for less",
        )
    sampling, tokens = pipe.sampling, pipe.model.num_tokens - known
    if wish.guidance is not None:
        sampling = replace(sampling, guidance=usual_guidance(sampling.preset, wish.guidance))
    if wish.temperature is not None:
        sampling = replace(sampling, temperature=wish.temperature)
    if known:
        sampling = sampling.scaled(tokens, known)
    given: Grouping = {
        "full": wish.full,
        "plain": wish.plain,
        "total": wish.total,
        "chain": wish.chain,
        "known": known,
    }
    if wish.local is not None:
        given["local"] = wish.local
    return pipe.schedule_for(sampling.schedule(tokens, **given), None, known)


def labels_of(pipe: Pipeline, given: Sequence[int | str] | None, first: int, num: int) -> list[int | None]:
    """A label for each of the images `first` to `first + num`; given ones are taken in turn, by the image's index."""
    classes = pipe.model.classes
    if not classes:
        if given:
            raise ValueError(f"{len(given)} label(s) were given but this model is unconditional; leave labels out")
        return [None] * num
    if given is None:
        return [index * classes // (first + num) for index in range(first, first + num)]
    if not given:
        raise ValueError("labels are empty; give at least one, or leave them out")
    found = [find_class(str(label), pipe.class_names, classes) for label in given]
    return [found[index % len(found)] for index in range(first, first + num)]


def start_of(
    pipe: Pipeline,
    image: Image.Image,
    mask: Image.Image | None,
    box: Sequence[int] | None,
    *,
    fitted: bool,
    paste: bool,
) -> Start:
    """A picture in the model's size, and what to draw anew: the white of a mask, or a box of the model's pixels."""
    side = pipe.side
    if (mask is None) == (box is None):
        raise ValueError('say what to draw anew with either "mask" or "redraw", not both or neither')
    if mask is not None and mask.size != image.size:
        raise ValueError(
            f"the mask is {mask.width} x {mask.height} pixels but the image {image.width} x {image.height}; "
            f"make them of one size"
        )
    if fitted:
        image, mask = fit(image, side), None if mask is None else fit(mask, side, mask=True)
    if image.size != (side, side):
        raise ValueError(
            f"the image is {image.width} x {image.height} pixels but this model draws {side} x {side}; "
            f'crop and scale it first, or say "fit": true'
        )
    if mask is None:
        assert box is not None
        mask = box_mask(side, *box)
    white = masks_of(mask.convert("L"), side)  # (1, H, W)
    masked = token_mask(white, pipe.need_tokenizer().config.stride)  # (1, N)
    if not bool(masked.any()):
        raise ValueError("the mask is empty, so there is nothing to redraw; make white what is to be drawn anew")
    return Start(batch_of(image, side), white, masked, paste)


def draw(pipe: Pipeline, works: Sequence[Work], batch: int, wanted: Wanted) -> Iterator[tuple[Work, Result]]:
    """The images of works that share a schedule, as they are finished.

    Kernels round differently for batches of another size. So every image is drawn alone where that costs little, on
    the CPU, and elsewhere every batch has as many images as any other, the last work repeated where there are too
    few: what an image looks like never hangs on who else asked for one. Whether they are `wanted` is looked at after
    every sub-step.
    """
    size = 1 if pipe.device.type == "cpu" else batch
    for first in range(0, len(works), size):
        lot = works[first : first + size]
        yield from zip(lot, draw_lot(pipe, lot, size, wanted), strict=True)


def draw_lot(pipe: Pipeline, works: Sequence[Work], size: int, wanted: Wanted) -> list[Result]:
    """At most `size` images, drawn together."""
    rows = [*works, *[works[-1]] * (size - len(works))]
    steps = pipe.canvases(**asked_of(pipe, rows))
    canvas = followed(steps, lambda: any(map(wanted, works)))
    if canvas is None:
        return [Refused(499, "left", "nobody waited for this image any more")] * len(works)
    pixels = pipe.decode(canvas.raster(), "pt")  # (B, 3, H, W)
    sound = canvas.sound.tolist()
    return [finished(work, pixels[row : row + 1], sound[row]) for row, work in enumerate(works)]


def asked_of(pipe: Pipeline, works: Sequence[Work]) -> dict[str, Any]:
    """What a pipeline is asked for, to draw works that share a schedule together."""
    schedule, known = works[0].schedule, None
    if schedule.known:
        starts = [work.start for work in works if work.start is not None]
        tokens = torch.cat([tokens_of(pipe, start) for start in starts])
        known = Known(tokens, torch.cat([start.masked for start in starts]).to(pipe.device))
    labels = [work.label for work in works if work.label is not None]
    return {
        "labels": labels or None,
        "num_images": None if labels else len(works),
        "schedule": schedule,
        "generator": [image_generators(work.seed, [work.index])[0] for work in works],
        "known": known,
    }


def followed(steps: Iterable[Canvas], wanted: Callable[[], bool]) -> Canvas | None:
    """The canvas that a run ends with, or None if nobody wanted it any more."""
    last: Canvas | None = None
    for canvas in steps:
        if not wanted():
            return None
        last = canvas
    return last


def tokens_of(pipe: Pipeline, start: Start) -> Tensor:
    if start.tokens is None:
        start.tokens = pipe.encode(start.pixels)
    return start.tokens


def finished(work: Work, pixels: Tensor, sound: bool) -> Result:
    """One image (1, 3, H, W) of a batch, or why there is none."""
    if not sound:
        return Refused(
            422,
            "unsound",
            f"image {work.index} of seed {work.seed} ran into values that are no numbers; ask for a guidance near 1",
        )
    start = work.start
    if start is not None and start.paste:
        pixels = torch.where(start.white.unsqueeze(1).to(pixels.device), pixels, start.pixels.to(pixels.device))
    image: Image.Image = as_type(pixels, "pil")[0]
    return image
