"""The same models with fused kernels: nothing is computed that torch does not compute, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.attention import Norm, Ops
from recap.core.canvas import Draw
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise
from recap.core.schedule import Step
from recap.engine import kernels
from recap.models.adapter import Adapter
from recap.models.layers import MLP
from recap.models.mar.denoiser import Denoiser
from recap.models.mar.diffusion import DiffusionHead, updates

HALF = (torch.bfloat16, torch.float16)
CHUNK = 1 << 30  # bytes of modulation that are computed ahead at a time


class FusedOps(Ops):
    """Residual sum and layer norm in one pass, GELU inside the matrix product, quick attention of few rows.

    The matrix product knows GELU by its tanh form, whose error (5e-4 at most) is below the rounding of half
    precision; in float32 the exact one stays.
    """

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[2] <= kernels.FEW and q.dtype in HALF:
            return kernels.attend_few(q, k, v)
        return super().attention(q, k, v)

    def mlp(self, mlp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if type(mlp) is not MLP or x.dtype not in HALF or not x.is_cuda:
            return super().mlp(mlp, x)
        hidden = torch._addmm_activation(mlp.fc1.bias, x.flatten(0, 1), mlp.fc1.weight.t(), use_gelu=True)
        return mlp.fc2(hidden).view(x.shape)

    def add_norm(self, x: Tensor, y: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None or x.dtype != norm.weight.dtype:
            return super().add_norm(x, y, norm)
        return kernels.add_norm(x, y, norm.weight, norm.bias, norm.eps)


class FusedCategoricalHead(CategoricalHead):
    """Guidance, temperature, draw and confidence in one pass over the logits."""

    def draw(self, features: Tensor, step: Step, branches: int, noise: Noise) -> Draw:
        uniform = noise.uniform(features.shape[1])
        ids, confidence = kernels.draw_ids(
            self.logits(features), uniform, branches, step.guidance, step.token_temperature
        )
        return Draw(ids, confidence)


class FusedDiffusionHead(DiffusionHead):
    """The diffusion of a token with little between its matrix products.

    The modulation of a residual block depends on time and condition, not on the token: that of many steps at once is
    one matrix product. What is left of a step are two small products a block and one pass between them.
    """

    def __init__(self, net: Denoiser, channels: int, bound: float | None = None) -> None:
        super().__init__(net, channels, bound)
        self.blocks: list[Any] = list(net.res_blocks)
        layers = [part.adaLN_modulation[1] for part in (*self.blocks, net.final_layer)]
        self.weight = torch.cat([layer.weight for layer in layers]).detach()  # ((3 depth + 2) w, w)
        self.bias = torch.cat([layer.bias for layer in layers]).detach()
        norm = self.blocks[0].in_ln
        self.entry = (
            net.input_proj.weight.detach().t().contiguous(),
            net.input_proj.bias.detach(),
            norm.weight.detach(),
            norm.bias.detach(),
            norm.eps,
        )
        self._numbers: dict[int, Tensor] = {}
        self._embedded: dict[int, Tensor] = {}

    def denoise(
        self, features: Tensor, random: Tensor, branches: int = 1, scale: float = 1.0, temperature: float = 1.0
    ) -> Tensor:
        guide = torch.tensor([scale, temperature], device=features.device)
        return self.run(features, random, guide, branches)

    def run(self, features: Tensor, random: Tensor, guide: Tensor, branches: int) -> Tensor:
        """`denoise` with guidance scale and temperature in a tensor (2), so that a graph can be told others."""
        net, steps = self.net, random.shape[1]
        numbers, times = self.table(steps, features.device)
        condition = net.cond_embed(features).flatten(0, 1)  # (R, w)
        rows, width = condition.shape
        x = torch.empty(rows // branches, self.channels, device=features.device)
        h, u = torch.empty_like(condition), torch.empty_like(condition)
        out: Tensor | None = None
        ahead = max(1, min(steps, CHUNK // (rows * len(self.weight) * condition.element_size())))
        for begin in range(0, steps, ahead):
            moments = times[begin : begin + ahead, None] + condition  # (S', R, w)
            many = nn.functional.linear(nn.functional.silu(moments, inplace=True), self.weight, self.bias)
            for q, changes in enumerate(many, start=begin):
                kernels.turn(
                    x, out, q - 1, numbers, guide, random[:, q], self.entry, changes, h, u, branches, self.bound
                )
                for i, block in enumerate(self.blocks):
                    inner = nn.functional.silu(block.mlp[0](u), inplace=True)
                    update = block.mlp[2](inner)
                    last = i + 1 == len(self.blocks)
                    norm = None if last else self.blocks[i + 1].in_ln
                    kernels.gate_norm_(
                        h,
                        update,
                        changes,
                        (3 * i + 2) * width,
                        (3 * i + 3) * width,
                        None if norm is None else (norm.weight, norm.bias),
                        1e-6 if norm is None else norm.eps,
                        u,
                    )
                out = net.final_layer.linear(u)  # (R, 2C)
        kernels.turn(x, out, steps - 1, numbers, guide, None, self.entry, None, h, u, branches, self.bound)
        return x.view(len(random), -1, self.channels)

    def table(self, steps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The numbers of every reverse step (S, 8) and the embedded timesteps (S, w), made once."""
        if steps not in self._numbers:
            with torch.inference_mode(False), torch.no_grad():
                rows = [[u.a, u.b, u.c, u.d, u.log_high, u.log_low, 0.0, 0.0] for u in updates(steps)]
                self._numbers[steps] = torch.tensor(rows, device=device)
                self._embedded[steps] = self.net.time_embed(self._timesteps(steps, device))
        return self._numbers[steps], self._embedded[steps]


def fused(model: Adapter) -> Adapter:
    """The model over the same network with fused kernels between its matrix products."""
    head = model.head
    if isinstance(head, DiffusionHead):
        head = FusedDiffusionHead(head.net, head.channels, head.bound)
    elif isinstance(head, CategoricalHead):
        head = FusedCategoricalHead(head.logits)
    return model.replace(ops=FusedOps(), head=head)
