"""The large matrix products in eight bits, on cards that have them: quicker, and less exact than half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from recap.core.attention import Projected
from recap.engine import kernels
from recap.engine.fused import FusedOps
from recap.models.layers import MLP

MANY = 4096  # rows from which a product is worth rounding its input
LARGEST = 448.0  # that a number of eight bits can be


class Float8Ops(FusedOps):
    """Queries, keys, values and the MLP of large evaluations in eight bits, each row and each output with a scale.

    Sums are kept in float32. What attention gives goes on in half precision, as do evaluations of few rows, norms,
    residuals and heads. The weights are rounded once, at first use; the network keeps its own.
    """

    def __init__(self) -> None:
        self._rounded: WeakKeyDictionary[Any, tuple[Tensor, Tensor]] = WeakKeyDictionary()

    def project(self, layer: Callable[[Tensor], Projected], x: Tensor) -> Projected:
        if not self._suits(x, layer):
            return super().project(layer, x)
        return self._product(layer, *kernels.round_rows(x.flatten(0, 1))).view(*x.shape[:2], -1)

    def mlp(self, mlp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if type(mlp) is not MLP or not self._suits(x, mlp.fc1, mlp.fc2):
            return super().mlp(mlp, x)
        hidden = self._product(mlp.fc1, *kernels.round_rows(x.flatten(0, 1)))
        return self._product(mlp.fc2, *kernels.round_rows(hidden, gelu=True)).view(*x.shape[:2], -1)

    @staticmethod
    def _suits(x: Tensor, *layers: Any) -> bool:
        """Whether there are rows enough, and plain layers of sizes that the products take."""
        return (
            x.shape[0] * x.shape[1] >= MANY
            and x.dtype == torch.bfloat16
            and all(type(layer) is nn.Linear and not layer._forward_hooks for layer in layers)
            and all(size % 16 == 0 for layer in layers for size in layer.weight.shape)
        )

    def _product(self, linear: Any, values: Tensor, scales: Tensor) -> Tensor:
        """A linear layer of rounded rows (R, w), in bfloat16 (R, outputs)."""
        if linear not in self._rounded:
            weight = linear.weight.detach().float()
            scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / LARGEST
            self._rounded[linear] = (weight / scale).to(torch.float8_e4m3fn).t(), scale.t().contiguous()
        weight, scale = self._rounded[linear]
        return torch._scaled_mm(
            values, weight, scales, scale, bias=linear.bias, out_dtype=torch.bfloat16, use_fast_accum=True
        )
