"""The one place that draws: batches, padding, memory, cancelling.

On the CPU a matrix product of another size may be rounded otherwise: batches of 1, 3 and 8 images differ in the last
bits, and so in some pixels. There every image is computed alone, but for models that promise the same bits. Elsewhere
a batch is always filled up to the same size, which keeps the kernels (and the captured graphs) the same for all of
them. So an image never depends on what is drawn beside it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Known
from recap.core.decode import decode_groups
from recap.core.memory import is_out_of_memory, release
from recap.core.orders import order_named
from recap.core.schedule import Schedule
from recap.runs.works import Done, Failed, Work
from recap.view.say import say_above

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline as Pipeline

ALONE = ("cpu",)  # devices on which every image is computed alone
Cancelled = Callable[[Work], bool]


class StepObserver(Protocol):
    """Sees images while they are drawn."""

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        """These images are drawn together, and sub-step number `step`, counted from 1, is done."""

    def done(self, results: Sequence[Done | Failed]) -> None:
        """These images are finished."""


def images_together(pipe: Pipeline, schedule: Schedule) -> int:
    """How many images are computed together; with a threshold each takes as many steps as it needs."""
    exact = pipe.model.exact_batches and not schedule.thresholds
    return pipe.batch_size if exact else fewest_together(pipe, schedule)


def fewest_together(pipe: Pipeline, schedule: Schedule) -> int:
    """With how many images others are filled up, for the same bits."""
    return 1 if pipe.device.type in ALONE or schedule.thresholds else pipe.batch_size


@torch.inference_mode()
def draw(
    pipe: Pipeline,
    works: Sequence[Work],
    observer: StepObserver | None = None,
    cancelled: Cancelled | None = None,
    *,
    decode: bool = True,
) -> Iterator[Done | Failed]:
    """Draw every work; results come as they are finished, those of one kind in the order of the works.

    Whether a work is `cancelled` is asked after every sub-step; a batch stops when all of its works are, and nothing
    is yielded for those. Without `decode` images stay tokens. Where memory does not suffice, the pipeline's
    `batch_size` is halved.
    """
    kinds: dict[object, list[Work]] = {}
    for work in works:
        kinds.setdefault(work.kind, []).append(work)
    for alike in kinds.values():
        first = 0
        while first < len(alike):
            size, failure = images_together(pipe, alike[0].schedule), None
            part = alike[first : first + size]
            try:
                results = _batch(pipe, part, size, observer, cancelled, decode)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise MemoryError(
                        "there is no memory for one image; use --dtype bfloat16, fewer local evaluations, or a "
                        "device with more of it"
                    ) from error
                failure = str(error) or "no memory"
            if failure is not None:  # out here, where nothing holds on to the tensors of what failed
                _halve(pipe, failure)
                continue
            first += size
            if observer is not None and results:
                observer.done(results)
            yield from results


def _halve(pipe: Pipeline, failure: str) -> None:
    """Let fewer images be computed together, and go of what more of them have left behind."""
    failed, pipe.batch_size = pipe.batch_size, pipe.batch_size // 2
    pipe.release()
    release(pipe.device)
    reason = ". ".join(failure.splitlines()[0].split(". ")[:2])  # CUDA goes on with advice
    said = f"{failed} images at a time found no memory ({reason}); going on with {pipe.batch_size}"
    say_above(said, file=sys.stderr)


def _batch(
    pipe: Pipeline,
    works: Sequence[Work],
    size: int,
    observer: StepObserver | None,
    cancelled: Cancelled | None,
    decode: bool,
) -> list[Done | Failed]:
    """At most `size` images, drawn together; none if nobody wants them any more."""
    if cancelled is not None and all(map(cancelled, works)):
        return []
    for step, canvas in enumerate(begin(pipe, works, size), start=1):
        if observer is not None:
            observer.step(works, step, canvas)
        if cancelled is not None and all(map(cancelled, works)):
            return []
        if works[0].stop is not None and ended(works, canvas):
            break
    return finish(pipe, works, canvas.raster(), canvas.finite, decode)


def begin(pipe: Pipeline, works: Sequence[Work], size: int) -> Iterator[Canvas]:
    """The canvas of works of one kind after every sub-step, the last work repeated where `size` rows are needed."""
    schedule, order = works[0].schedule, works[0].order
    rows = [*works, *[works[-1]] * (min(size, fewest_together(pipe, schedule)) - len(works))]
    labels = [work.label for work in rows if work.label is not None]
    starts = [work.start for work in rows if work.start is not None]
    known = None
    if starts:
        masked = torch.stack([start.masked for start in starts]).to(pipe.device)
        known = Known(torch.stack([start.read(pipe) for start in starts]), masked)
    canvases = decode_groups(
        pipe.model_of(works[0]),
        torch.tensor(labels, device=pipe.device) if labels else None,
        schedule,
        pipe.selector if order is None else order_named(order, works[0].block),
        pipe.noise([work.key for work in rows]),
        known,
    )
    return as_asked(canvases, pipe.device)


def as_asked(canvases: Iterator[Canvas], device: torch.device) -> Iterator[Canvas]:
    """The canvases in the dtype that the model has, whatever autocast surrounds the run."""
    while True:
        with torch.autocast(device.type, enabled=False):
            canvas = next(canvases, None)
        if canvas is None:
            return
        yield canvas


def ended(works: Sequence[Work], canvas: Canvas) -> bool:
    """Whether every text has an end that was written, with nothing left to write before it; images go on."""
    if (stop := works[0].stop) is None:
        return False
    written = torch.arange(canvas.size, device=canvas.order.device) >= canvas.known
    ends = (canvas.tokens == stop) & written
    ends[:, canvas.decoded :] = False
    far = canvas.size
    first_end = torch.where(ends, canvas.order, far).amin(dim=1)
    first_masked = torch.where(written & (torch.arange(far, device=ends.device) >= canvas.decoded), canvas.order, far)
    return bool((first_end < first_masked.amin(dim=1)).all()) and bool((first_end < far).all())


def finish(
    pipe: Pipeline, works: Sequence[Work], tokens: Tensor, finite: Tensor, decode: bool = True
) -> list[Done | Failed]:
    """The results of a batch whose last sub-step is done, from its tokens in raster order (rows, N, ...)."""
    pixels = pipe.decode(tokens, "pt") if decode else None  # (rows, 3, H, W)
    if pixels is not None:
        finite = finite & pixels.isfinite().flatten(1).all(dim=1)
    results: list[Done | Failed] = []
    for row, (work, whole) in enumerate(zip(works, finite.tolist(), strict=False)):
        if not whole:
            results.append(Failed(work, tokens[row]))
            continue
        image = None if pixels is None else pixels[row]
        if image is not None and work.start is not None:
            image = work.start.paste(image)
        results.append(Done(work, tokens[row], image))
    return results
