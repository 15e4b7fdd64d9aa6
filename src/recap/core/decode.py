"""The one sampling loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Draw, Known, take
from recap.core.noise import Noise, PositionNoise, Purpose
from recap.core.protocols import Head, MaskedModel, Selector
from recap.core.schedule import Schedule
from recap.core.start import begin, check_fit
from recap.core.steps import Step


def grouped_decode(
    model: MaskedModel,
    labels: Tensor | None,
    schedule: Schedule,
    selector: Selector,
    noise: Noise,
    known: Known | None = None,
) -> Iterator[Canvas]:
    """Decode a batch; yields the canvas after every sub-step.

    One full evaluation for each group, then local evaluations of its target set. Groups without local
    evaluations write no cache, and a schedule without them allocates none. `known` tokens are the first rows to
    have arrived; the schedule decodes the others, in the selector's order.
    """
    schedule = schedule.knowing(0 if known is None else known.count)
    check_fit(model, schedule)
    return decode_groups(model, labels, schedule, selector, noise, known)


@torch.inference_mode()
def decode_groups(
    model: MaskedModel,
    labels: Tensor | None,
    schedule: Schedule,
    selector: Selector,
    noise: Noise,
    known: Known | None,
) -> Iterator[Canvas]:
    """The loop of `grouped_decode`, for a schedule that was checked when the works were made."""
    branches = 2 if schedule.guided else 1
    canvas = begin(model, labels, selector.order(model.num_tokens, noise), branches, known)
    cache = model.new_cache(canvas, schedule) if schedule.local else None
    due, number = canvas.decoded, 0
    for group in schedule:
        target = None
        for step in group.steps:
            number += 1
            due += step.tokens
            if canvas.decoded >= due:  # a threshold let these tokens pass before
                yield canvas
                continue
            opens = target is None
            if target is None:
                first, target = number, slice(canvas.decoded, min(canvas.decoded + group.rows, canvas.size))
                canvas.begin_group(branches if group.guided else 1)  # at scale 1 the conditional one is all
            count = due - canvas.decoded
            wanted = selector.candidates(canvas, target, count)
            if step.until:
                wanted = slice(wanted.start, min(wanted.stop, canvas.known + step.until))
            if opens:
                features = model.full(canvas, cache if group.local else None, wanted)
            else:
                assert cache is not None
                features = model.local(canvas, cache, group.recomputed(target, canvas.size), wanted)
            numbers = partial(numbers_of, noise, first if group.coupled else number, group.coupled)
            canvas.commit(choose(canvas, model.head, selector, features, wanted, count, step, numbers))
            yield canvas


def choose(
    canvas: Canvas,
    head: Head,
    selector: Selector,
    features: Tensor,
    wanted: slice,
    count: int,
    step: Step,
    numbers: Callable[[Purpose, Tensor], PositionNoise],
) -> Draw:
    """The next `count` rows of the canvas, chosen among those `wanted`, and the values that they are given."""
    at = canvas.order[:, wanted]  # (B, C) randomness belongs to positions
    if wanted.stop - wanted.start == count:
        return head.draw(features, step, canvas.branches, numbers(Purpose.VALUES, at))
    draw = head.draw(features, step.ranking, canvas.branches, numbers(Purpose.VALUES, at))
    leftmost = at.argsort(dim=1)  # where candidates are equally sure
    ranks = selector.rank(draw.at(leftmost), step, numbers(Purpose.RANKS, at.gather(1, leftmost)))
    ranking = leftmost.gather(1, ranks)  # (B, C)
    if step.threshold is not None:
        count = max(count, passing(draw.at(ranking), step.threshold))
    canvas.promote(ranking)
    chosen = ranking[:, :count]
    if step.rank_temperature is None:
        return draw.at(chosen)
    again = numbers(Purpose.REDRAWN, take(at, chosen))
    return head.draw(take(features, chosen), step, canvas.branches, again)


def numbers_of(noise: Noise, draw: int, coupled: bool, purpose: Purpose, positions: Tensor) -> PositionNoise:
    """The numbers of positions (B, n) in a draw; where draws are coupled, a value drawn again has those it had."""
    return noise.at(draw, Purpose.VALUES if coupled and purpose is Purpose.REDRAWN else purpose, positions)


def passing(draw: Draw, threshold: float) -> int:
    """How many rows of the only image are at least as sure as `threshold`, before the first that is not."""
    if draw.confidence is None or len(draw.confidence) > 1:
        raise ValueError("a threshold needs the confidence of one image at a time; draw images in batches of 1")
    return int((draw.confidence[0] >= math.log(threshold)).long().cumprod(0).sum())
