"""Where: which masked positions a sub-step decodes, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, PositionNoise
from recap.core.steps import Step


class PrecomputedOrder:
    """What orders have in common that are known before the first evaluation: there is nothing to choose."""

    def candidates(self, canvas: Canvas, target: slice, count: int) -> slice:
        return slice(canvas.decoded, canvas.decoded + count)

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        raise AssertionError("an order that is known before the run leaves nothing to rank")


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

    def candidates(self, canvas: Canvas, target: slice, count: int) -> slice:
        return slice(canvas.decoded, canvas.size if canvas.decoded == target.start else canvas.decoded + count)

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        if draw.confidence is None:
            raise ValueError("this model's head has no confidence to rank by; use RandomOrder()")
        perturbed = draw.confidence
        if step.choice_temperature:
            perturbed = perturbed + step.choice_temperature * noise.gumbel()
        return perturbed.argsort(dim=1, descending=True, stable=True)  # (B, C)


class InformedOrder(ConfidenceOrder):
    """Confidence that is asked again: a local evaluation ranks what is left of the target set anew.

    With a target set of more rows than the group commits, it chooses among them as a full evaluation chooses among
    all, knowing what was committed since; what is left over stays masked.
    """

    def candidates(self, canvas: Canvas, target: slice, count: int) -> slice:
        return slice(canvas.decoded, canvas.size if canvas.decoded == target.start else target.stop)


class ShuffledOrder(ConfidenceOrder):
    """Any masked positions first, among those where a step may choose: random order within blocks of text."""

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        return noise.uniform().argsort(dim=1, stable=True)  # (B, C)
