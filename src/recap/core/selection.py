"""Where: which masked positions a group decodes, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Draw, take
from recap.core.noise import Noise
from recap.core.protocols import Head
from recap.core.schedule import Group


class PrecomputedOrder:
    """What orders have in common that are known before the first evaluation."""

    def candidates(self, canvas: Canvas, group: Group) -> slice:
        """The rows worth predicting in a full evaluation: only those that it commits."""
        return slice(canvas.decoded, canvas.decoded + group.steps[0].tokens)

    def rank(self, canvas: Canvas, head: Head, features: Tensor, group: Group, noise: Noise) -> Draw:
        """The draw of the group's first subset."""
        return head.draw(features, group.steps[0], canvas.branches, noise)


class RandomOrder(PrecomputedOrder):
    """A random permutation for each image, known before the first evaluation (MAR)."""

    def order(self, size: int, noise: Noise) -> Tensor:
        return noise.permutation(size)  # (B, N)


class FixedOrder(PrecomputedOrder):
    """An order of one's own: a permutation of the positions, the same for every image.

    Models that learnt from random masks take any order; how well they draw in it is theirs to show.
    """

    def __init__(self, positions: Sequence[int] | Tensor) -> None:
        given = positions.tolist() if isinstance(positions, Tensor) else positions
        self.positions = tuple(int(position) for position in given)
        missing = sorted(set(range(len(self.positions))) - set(self.positions))
        if missing:
            raise ValueError(
                f"an order of {len(self.positions)} positions leaves out position {missing[0]}; "
                f"name every position from 0 to {len(self.positions) - 1} once"
            )

    def order(self, size: int, noise: Noise) -> Tensor:
        if size != len(self.positions):
            raise ValueError(
                f"the order has {len(self.positions)} positions but the model has {size}; name each once"
            )
        return torch.tensor(self.positions, device=noise.device).repeat(len(noise), 1)  # (B, N)


class ConfidenceOrder:
    """The most confident masked positions first, by Gumbel top-k (MaskGIT, MAGE; appendix C of the paper).

    Each full evaluation draws every masked position, perturbs the confidence with choice temperature times
    Gumbel noise, and ranks. The target set is the head of that ranking and stays frozen over the group.
    """

    def order(self, size: int, noise: Noise) -> Tensor:
        return torch.arange(size, device=noise.device).repeat(len(noise), 1)  # (B, N)

    def candidates(self, canvas: Canvas, group: Group) -> slice:
        return slice(canvas.decoded, canvas.size)

    def rank(self, canvas: Canvas, head: Head, features: Tensor, group: Group, noise: Noise) -> Draw:
        step = group.steps[0]
        warmth = step.temperature if step.rank_temperature is None else step.rank_temperature
        draw = head.draw(features, replace(step, temperature=warmth), canvas.branches, noise)
        if draw.confidence is None:
            raise ValueError("this model's head has no confidence to rank by; use RandomOrder()")
        perturbed = draw.confidence + step.choice_temperature * noise.gumbel(draw.confidence.shape[1])
        ranking = perturbed.argsort(dim=1, descending=True, stable=True)  # (B, C)
        canvas.promote(ranking)
        first = ranking[:, : step.tokens]
        if step.rank_temperature is None:
            return Draw(take(draw.values, first), take(draw.confidence, first))
        return head.draw(take(features, first), step, canvas.branches, noise)
