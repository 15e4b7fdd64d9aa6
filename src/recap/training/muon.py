"""Muon: momentum whose matrices are brought near orthogonal before they are applied.

A step moves every direction of a weight matrix by the same amount, which takes fewer steps than AdamW to the same
loss. It is for the matrices between the first and the last layer; everything else stays with AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose iteration drives singular values towards 1
ROUNDS = 5


def orthogonal(matrices: Tensor, half: bool = False) -> Tensor:
    """The nearly orthogonal matrices in the directions of `matrices` (n, r, c); singular values end near 1.

    They are found in bfloat16 on a GPU, and elsewhere where `half` of the digits are asked to do.
    """
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if half or matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Scaled so that AdamW's learning rates and weight decay fit."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        half: bool = False,
    ) -> None:
        self.half = half
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._step(parameters, group)

    def _step(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in parameters if p.grad is not None]
        for p in parameters:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        trails = [self.state[p]["momentum"] for p in parameters]
        torch._foreach_lerp_(trails, grads, 1 - group["momentum"])
        ahead = torch.stack(torch._foreach_lerp(grads, trails, group["momentum"]))  # (n, r, c) or (n, out, in, k, k)
        shape = ahead.shape
        ahead = ahead.flatten(2)  # a convolution maps the patch under it
        rows, columns = ahead.shape[-2:]
        if rows == 3 * columns:  # queries, keys and values are three matrices
            moves = orthogonal(ahead.reshape(-1, columns, columns), self.half).reshape(ahead.shape)
            rows = columns
        else:
            moves = orthogonal(ahead, self.half)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] * 0.2 * max(rows, columns) ** 0.5
        torch._foreach_add_(parameters, moves.reshape(shape).unbind(), alpha=-rate)
