"""What: from features to token values."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from recap.core.canvas import Draw
from recap.core.noise import PositionNoise
from recap.core.steps import Step


def guided(predictions: Tensor, branches: int, scale: float) -> Tensor:
    """Combine the branches: u + scale (c - u), conditional first; scale 1 is the conditional one alone."""
    if branches == 1:
        return predictions
    conditional, unconditional = predictions.chunk(2)
    return unconditional + scale * (conditional - unconditional)


class CategoricalHead:
    """Draws ids from a softmax over the codebook; confidence is the untempered log-probability.

    Where only some ids are allowed, `logits` are theirs alone, and `vocab_ids` (V) says which they are.
    """

    def __init__(self, logits: Callable[[Tensor], Tensor], vocab_ids: Tensor | None = None) -> None:
        self.logits, self.vocab_ids = logits, vocab_ids

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        logits = guided(self.logits(features).float(), branches, step.guidance)  # (B, n, V)
        if step.temperature == 0:
            ids = logits.argmax(-1)  # (B, n)
        else:
            # a race in which the first of V clocks rings: small errors of the logits change few of the ids,
            # while one number on the ladder of probabilities lands on another rung as soon as anything below moves
            clocks = noise.exponential(logits.shape[-1])
            ids = ((logits / step.temperature).softmax(-1) / clocks).argmax(-1)
        confidence = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return Draw(self.named(ids), confidence)

    def named(self, ids: Tensor) -> Tensor:
        """Ids as the model knows them, from places among the logits."""
        if self.vocab_ids is None:
            return ids
        if self.vocab_ids.device != ids.device:  # the network was moved
            self.vocab_ids = self.vocab_ids.to(ids.device)
        return self.vocab_ids[ids]
