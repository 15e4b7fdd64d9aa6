"""How a run begins: a schedule that fits the model, and a canvas with what is known on it."""

from __future__ import annotations

from torch import Tensor

from recap.core.canvas import Canvas, Draw, Known, take
from recap.core.protocols import MaskedModel
from recap.core.schedule import Schedule


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
    canvas.known = known.count
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
