"""The one sampling loop."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Draw, Known, take
from recap.core.noise import Noise
from recap.core.protocols import MaskedModel, Selector
from recap.core.schedule import Schedule


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
    for group in schedule:
        start = canvas.decoded
        canvas.cache_rows = None
        canvas.branches = branches if group.guided else 1  # at scale 1 the conditional one is all
        wanted = selector.candidates(canvas, group)
        features = model.full(canvas, cache if group.local else None, wanted)
        canvas.commit(selector.rank(canvas, model.head, features, group, noise))
        yield canvas
        target = slice(start, start + group.tokens)
        for step in group.steps[1:]:
            assert cache is not None
            wanted = slice(canvas.decoded, canvas.decoded + step.tokens)
            features = model.local(canvas, cache, target, wanted)  # (branches * B, n, D)
            canvas.commit(model.head.draw(features, step, canvas.branches, noise))
            yield canvas


def begin(model: MaskedModel, labels: Tensor | None, order: Tensor, branches: int, known: Known | None) -> Canvas:
    """The canvas of a run that decodes in `order` (B, N) what is not known."""
    if known is None:
        return model.start(labels, order, branches)
    if known.masked.shape != order.shape:
        raise ValueError(
            f"known tokens are of {len(known.masked)} images with {known.masked.shape[1]} tokens but the run has "
            f"{len(order)} images with {order.shape[1]}; give one row for each image, and all of its tokens"
        )
    canvas = model.start(labels, known.first(order), branches)
    given, own = known.tokens, canvas.tokens
    if given.shape != own.shape or given.is_floating_point() != own.is_floating_point():
        raise ValueError(
            f"known tokens are {tuple(given.shape)} of {given.dtype} but those of this model are "
            f"{tuple(own.shape)} of {own.dtype}; encode with the tokenizer that belongs to it"
        )
    canvas.commit(Draw(take(given, canvas.order[:, : known.count])))
    return canvas


def check_fit(model: MaskedModel, schedule: Schedule) -> None:
    """Refuse a schedule that the model cannot follow, before any work is done."""
    expected = model.num_tokens - schedule.known
    if schedule.tokens != expected:
        known = f"{schedule.known} of the model's {model.num_tokens} are known"
        raise ValueError(
            f"the schedule decodes {schedule.tokens} tokens but "
            f"{known if schedule.known else f'the model has {expected}'}; build it with tokens={expected}"
        )
    if schedule.guided and not model.guidable:
        raise ValueError(
            "the schedule asks for guidance but this model has no null class to guide away from; use guidance 1.0"
        )
