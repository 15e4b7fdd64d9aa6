"""The same models with fused kernels: nothing is computed that torch does not compute, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from recap.core.attention import Norm, Ops
from recap.core.cache import LayerCache, Rows
from recap.core.canvas import Draw
from recap.core.heads import BARRED, CategoricalHead
from recap.core.noise import PositionNoise
from recap.core.protocols import Head
from recap.core.steps import Step
from recap.engine import kernels
from recap.models.adapter import Adapter
from recap.models.layers import MLP, is_plain
from recap.models.registry import FAMILIES

HALF = (torch.bfloat16, torch.float16)


class FusedOps(Ops):
    """Residual sum and layer norm in one pass, GELU inside the matrix product, quick attention of few rows.

    The matrix product knows GELU by its tanh form, whose error (5e-4 at most) is below the rounding of half
    precision; in float32 the exact one stays.
    """

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # torch takes 128 rows and keys at a time: ours is quicker where half of the last of these would be empty
        few = q.shape[2] <= kernels.FEW or (k.shape[2] - 1) % 128 < 64
        beside = q.stride(1) == q.shape[3]  # not where several heads ask one of keys
        if self.seen is None and q.dtype in HALF and few and beside:
            return kernels.attend(q, k, v)
        return super().attention(q, k, v)

    def store(self, layer: LayerCache, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if (rows.cache_rows is None and len(rows.spans) != 1) or k.stride() != v.stride():
            return super().store(layer, k, v, rows)
        kernels.store(k, v, layer.k, layer.v, rows.spans[0].start if rows.cache_rows is None else rows.cache_rows)
        return layer.k[:, : rows.length], layer.v[:, : rows.length]

    def merge(self, linear: Callable[[Tensor], Tensor], x: Tensor, skip: Tensor) -> Tensor:
        if not is_plain(linear):
            return super().merge(linear, x, skip)
        width = x.shape[-1]
        first = nn.functional.linear(x, linear.weight[:, :width], linear.bias).flatten(0, 1)
        return torch.addmm(first, skip.flatten(0, 1), linear.weight[:, width:].t()).view(x.shape)

    def mlp(self, mlp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if type(mlp) is not MLP or not is_plain(mlp.fc1) or x.dtype not in HALF or not x.is_cuda:
            return super().mlp(mlp, x)
        hidden = torch._addmm_activation(mlp.fc1.bias, x.flatten(0, 1), mlp.fc1.weight.t(), use_gelu=True)
        return mlp.fc2(hidden).view(x.shape)

    def add_norm(self, x: Tensor, y: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None or x.dtype != norm.weight.dtype:
            return super().add_norm(x, y, norm)
        return kernels.add_norm(x, y, norm.weight, norm.bias, norm.eps)


class FusedCategoricalHead(CategoricalHead):
    """Guidance, temperature, draw and confidence in one pass over the logits."""

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        if step.temperature == 0 or step.top_k or step.top_p or step.confidence != "probability":
            return super().draw(features, step, branches, noise)
        logits = self.logits(features)
        if self.barred is not None:  # finite, for branches are subtracted from each other
            logits[..., self.barred] = max(torch.finfo(logits.dtype).min, BARRED)
        ids, confidence = kernels.draw_ids(logits, noise, branches, step.guidance, step.temperature)
        return Draw(self.named(ids), confidence)


def fused(model: Adapter, ops: Ops | None = None) -> Adapter:
    """The model over the same network with fused kernels between its matrix products."""
    return model.replace(ops=ops or FusedOps(), head=fused_head(model.head))


def fused_head(head: Head) -> Head:
    """A faster head that draws the same, if there is one: families have their own."""
    if isinstance(head, CategoricalHead):
        return FusedCategoricalHead(head.logits, head.vocab_ids, head.barred)
    faster = (family.fused_head(head) for family in FAMILIES.values() if family.fused_head is not None)
    return next((found for found in faster if found is not None), head)
