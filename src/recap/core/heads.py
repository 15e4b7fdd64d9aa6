"""What: from features to token values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from recap.core.canvas import Draw
from recap.core.noise import PositionNoise
from recap.core.steps import Step

BARRED = -1e30  # a logit that leaves an id no share at any temperature, and is finite still when divided by one


def guided(predictions: Tensor, branches: int, scale: float) -> Tensor:
    """Combine the branches: u + scale (c - u), conditional first; scale 1 is the conditional one alone."""
    if branches == 1:
        return predictions
    conditional, unconditional = predictions.chunk(2)
    return unconditional + scale * (conditional - unconditional)


class CategoricalHead:
    """Draws ids from a softmax over the codebook, and says how sure it is of each (`Step.confidence`).

    Where only some ids are allowed, `logits` are theirs alone, and `vocab_ids` (V) says which they are. One among
    the logits may be `barred`: it is never drawn.
    """

    def __init__(
        self, logits: Callable[[Tensor], Tensor], vocab_ids: Tensor | None = None, barred: int | None = None
    ) -> None:
        self.logits, self.vocab_ids, self.barred = logits, vocab_ids, barred

    def over(self, logits: Callable[[Tensor], Tensor]) -> Self:
        """The same head over other logits."""
        return type(self)(logits, self.vocab_ids, self.barred)

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        logits = guided(self.logits(features).float(), branches, step.guidance)  # (B, n, V)
        if self.barred is not None:
            logits[..., self.barred] = -torch.inf
        tempered = filtered(logits / (step.temperature or 1.0), step.top_k, step.top_p)
        if step.temperature == 0:
            ids = tempered.argmax(-1)  # (B, n)
        else:
            # a race in which the first of V clocks rings: small errors of the logits change few of the ids,
            # while one number on the ladder of probabilities lands on another rung as soon as anything below moves
            ids = (tempered.softmax(-1) / noise.exponential(logits.shape[-1])).argmax(-1)
        sure = logits if step.confidence == "probability" else tempered
        return Draw(self.named(ids), CONFIDENCES[step.confidence](sure, ids))

    def log_shares(self, logits: Tensor) -> Tensor:
        """Log-probabilities of what may be drawn; that of the barred id is far below all others, and finite."""
        if self.barred is not None:
            logits = logits.clone()
            logits[..., self.barred] = BARRED
        return logits.log_softmax(-1)

    def named(self, ids: Tensor) -> Tensor:
        """Ids as the model knows them, from places among the logits."""
        if self.vocab_ids is None:
            return ids
        if self.vocab_ids.device != ids.device:  # the network was moved
            self.vocab_ids = self.vocab_ids.to(ids.device)
        return self.vocab_ids[ids]


def filtered(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Logits (..., V) of the likeliest ids, which have `top_p` together or are `top_k` at most; others have -inf."""
    if top_p is not None and top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        shares = ordered.softmax(-1)
        beyond = shares.cumsum(-1) - shares > top_p  # the likeliest one stays in any case
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, places, beyond), -torch.inf)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, dim=-1).values[..., -1:], -torch.inf)
    return logits


def log_probability(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)  # (B, n)


def margin(logits: Tensor, ids: Tensor) -> Tensor:
    """By how much the likeliest id leads."""
    first, second = logits.softmax(-1).topk(2, dim=-1).values.unbind(-1)
    return first - second


def negative_entropy(logits: Tensor, ids: Tensor) -> Tensor:
    shares = logits.softmax(-1)
    return (shares * (shares + 1e-10).log()).sum(-1)


CONFIDENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "probability": log_probability,
    "tempered": lambda logits, ids: log_probability(logits, ids).exp(),
    "margin": margin,
    "entropy": negative_entropy,
}
