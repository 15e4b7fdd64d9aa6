"""The one place that draws: batches, padding, memory, cancelling.

On the CPU a matrix product of another size may be rounded otherwise: batches of 1, 3 and 8 images differ in the last
bits, and so in some pixels. There every image is computed alone. Elsewhere a batch is always filled up to the same
size, which keeps the kernels (and the captured graphs) the same for all of them. So an image never depends on what is
drawn beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Known
from recap.core.decode import grouped_decode
from recap.core.selection import ORDERS
from recap.runs.backoff import OutOfMemoryBackoff
from recap.runs.works import Done, Failed, Start, Work

if TYPE_CHECKING:
    from recap.pipelines import Pipeline

Cancelled = Callable[[Work], bool]


class StepObserver(Protocol):
    """Sees images while they are drawn."""

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        """These images are drawn together, and sub-step number `step`, counted from 1, is done."""

    def done(self, results: Sequence[Done | Failed]) -> None:
        """These images are finished."""


def never(work: Work) -> bool:
    """Nothing is cancelled."""
    return False


def one_at_a_time(device: torch.device) -> bool:
    """Whether images are computed alone on this device."""
    return device.type == "cpu"


def backoff_for(pipe: Pipeline) -> OutOfMemoryBackoff:
    """How many images are computed together, now and after memory has ended."""
    return OutOfMemoryBackoff(1 if one_at_a_time(pipe.device) else pipe.batch_size, pipe.device, pipe.release)


@torch.inference_mode()
def draw(
    pipe: Pipeline,
    works: Sequence[Work],
    observer: StepObserver | None = None,
    cancelled: Cancelled = never,
    *,
    decode: bool = True,
    backoff: OutOfMemoryBackoff | None = None,
) -> Iterator[Done | Failed]:
    """Draw every work; results come as they are finished, those of one kind in the order of the works.

    Whether a work is `cancelled` is asked after every sub-step; a batch stops when all of its works are, and nothing
    is yielded for those. Without `decode` images stay tokens. A `backoff` of one's own remembers how many images
    found memory from call to call.
    """
    backoff = backoff or backoff_for(pipe)
    kinds: dict[object, list[Work]] = {}
    for work in works:
        kinds.setdefault(work.kind, []).append(work)
    for alike in kinds.values():

        def batch(part: range, alike: Sequence[Work] = alike) -> list[Done | Failed]:
            return _batch(pipe, alike[part.start : part.stop], backoff.batch, observer, cancelled, decode)

        for _, results in backoff.parts(len(alike), batch):
            if observer is not None and results:
                observer.done(results)
            yield from results


def _batch(
    pipe: Pipeline,
    works: Sequence[Work],
    size: int,
    observer: StepObserver | None,
    cancelled: Cancelled,
    decode: bool,
) -> list[Done | Failed]:
    """At most `size` images, drawn together; none if nobody wants them any more."""
    if all(map(cancelled, works)):
        return []
    canvas: Canvas | None = None
    for step, canvas in enumerate(begin(pipe, works, size), start=1):
        if observer is not None:
            observer.step(works, step, canvas)
        if all(map(cancelled, works)):
            return []
    assert canvas is not None
    return finish(pipe, works, canvas.raster(), canvas.finite, decode)


def begin(pipe: Pipeline, works: Sequence[Work], size: int) -> Iterator[Canvas]:
    """The canvas of works of one kind after every sub-step, the last work repeated until there are `size` rows."""
    rows = [*works, *[works[-1]] * (size - len(works))]
    labels = [work.label for work in rows if work.label is not None]
    starts = [work.start for work in rows if work.start is not None]
    selector = pipe.selector if works[0].order is None else ORDERS[works[0].order]()
    return grouped_decode(
        pipe.model,
        torch.tensor(labels, device=pipe.device) if labels else None,
        works[0].schedule,
        selector,
        pipe.noise([work.key for work in rows]),
        known_of(pipe, starts) if starts else None,
    )


def known_of(pipe: Pipeline, starts: Sequence[Start]) -> Known:
    """What a batch begins with."""
    tokens = torch.stack([start.read(pipe) for start in starts])
    return Known(tokens, torch.stack([start.masked for start in starts]).to(pipe.device))


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
