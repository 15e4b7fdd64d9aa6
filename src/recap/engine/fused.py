"""The same models with fused kernels: nothing is computed that torch does not compute, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from recap.core.attention import Norm, Ops
from recap.core.cache import LayerCache, Rows
from recap.core.canvas import Draw
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise
from recap.core.schedule import Step
from recap.engine import diffusion_kernels, kernels
from recap.models.adapter import Adapter
from recap.models.layers import MLP
from recap.models.mar.diffusion import DiffusionHead, Update, updates

HALF = (torch.bfloat16, torch.float16)
CHUNK = 1 << 30  # bytes of modulation that are computed ahead at a time


def is_plain(layer: object) -> TypeGuard[nn.Linear]:
    """Whether a layer is torch's linear one and nothing else: others (LoRA, quantized) are called as modules."""
    return type(layer) is nn.Linear and layer.bias is not None and not layer._forward_hooks


class FusedOps(Ops):
    """Residual sum and layer norm in one pass, GELU inside the matrix product, quick attention of few rows.

    The matrix product knows GELU by its tanh form, whose error (5e-4 at most) is below the rounding of half
    precision; in float32 the exact one stays.
    """

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # torch takes 128 rows and keys at a time: ours is quicker where half of the last of these would be empty
        if q.dtype in HALF and (q.shape[2] <= kernels.FEW or (k.shape[2] - 1) % 128 < 64):
            return kernels.attend(q, k, v)
        return super().attention(q, k, v)

    def store(self, layer: LayerCache, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if (rows.slots is None and len(rows.spans) != 1) or k.stride() != v.stride():
            return super().store(layer, k, v, rows)
        kernels.store(k, v, layer.k, layer.v, rows.spans[0].start if rows.slots is None else rows.slots)
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

    def draw(self, features: Tensor, step: Step, branches: int, noise: Noise) -> Draw:
        logits = self.logits(features)
        keys, first = noise.reserve((logits.shape[1] * logits.shape[2] + 1) // 2)
        ids, confidence = kernels.draw_ids(logits, keys, first, branches, step.guidance, step.token_temperature)
        return Draw(self.named(ids), confidence)


class FusedDiffusionHead(DiffusionHead):
    """The diffusion of a token with little between its matrix products.

    The modulation of a residual block depends on time and condition, not on the token: that of many steps at once is
    one matrix product. What is left of a step are two small products a block and one pass between them.
    """

    def __init__(self, net: Any, channels: int, bound: float | None = None) -> None:
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
        self._prepared: dict[tuple[Update, ...], tuple[Tensor, Tensor]] = {}

    def denoise(
        self,
        features: Tensor,
        random: Tensor,
        branches: int = 1,
        scale: float = 1.0,
        temperature: float = 1.0,
        table: tuple[Update, ...] | None = None,
    ) -> Tensor:
        guide = torch.empty(2, device=features.device)
        guide[0].fill_(scale)  # a copy from the host would wait for the device
        guide[1].fill_(temperature)
        return self.run(features, random, guide, branches, updates(random.shape[1]) if table is None else table)

    def run(
        self, features: Tensor, random: Tensor, guide: Tensor, branches: int, table: tuple[Update, ...]
    ) -> Tensor:
        """`denoise` with guidance scale and temperature in a tensor (2), so that a graph can be told others."""
        net, steps = self.net, len(table)
        numbers, times = self.prepared(table, features.device)
        lean = any(update.lean for update in table)
        condition = net.cond_embed(features).flatten(0, 1)  # (R, w)
        rows = len(condition)
        x = torch.empty(rows // branches, self.channels, device=features.device)
        last = torch.zeros_like(x)
        h, u = torch.empty_like(condition), torch.empty_like(condition)
        out: Tensor | None = None
        ahead = max(1, min(steps, CHUNK // (rows * len(self.weight) * condition.element_size())))
        for begin in range(0, steps, ahead):
            moments = times[begin : begin + ahead, None] + condition  # (S', R, w)
            many = nn.functional.linear(nn.functional.silu(moments, inplace=True), self.weight, self.bias)
            for q, changes in enumerate(many, start=begin):
                fresh = random[:, q] if q < random.shape[1] else None
                diffusion_kernels.turn(
                    x, last, out, q - 1, numbers, guide, fresh, self.entry, changes, h, u, branches, self.bound, lean
                )
                out = self.words(h, u, changes)
        diffusion_kernels.turn(
            x, last, out, steps - 1, numbers, guide, None, self.entry, None, h, u, branches, self.bound, lean
        )
        return x.view(len(random), -1, self.channels)

    def words(self, h: Tensor, u: Tensor, changes: Tensor) -> Tensor:
        """What the network says (R, 2C) of its input `h` (R, w), whose modulated norm is `u`; both are used up."""
        width = h.shape[1]
        for i, block in enumerate(self.blocks):
            update = product(block.mlp[2], product(block.mlp[0], u, silu=True))
            norm, eps = self._norm(i + 1)
            diffusion_kernels.gate_norm_(h, update, changes, (3 * i + 2) * width, (3 * i + 3) * width, norm, eps, u)
        return product(self.net.final_layer.linear, u)

    def _norm(self, block: int) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """Weights and epsilon of the norm before a block; the one before the last layer has no weights."""
        if block == len(self.blocks):
            return None, 1e-6
        norm = self.blocks[block].in_ln
        return (norm.weight, norm.bias), norm.eps

    def prepared(self, table: tuple[Update, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """The numbers of every reverse step (S, 8) and the embedded timesteps (S, w), made once."""
        if table not in self._prepared:
            with torch.inference_mode(False), torch.no_grad():
                rows = [[u.a, u.b, u.c, u.d, u.log_high, u.log_low, u.lean, 0.0] for u in table]
                times = self.embed_times(self._timesteps(table, device), self.weight.dtype)
                self._prepared[table] = torch.tensor(rows, device=device), times
        return self._prepared[table]


def product(layer: nn.Linear, x: Tensor, silu: bool = False) -> Tensor:
    """A linear layer of rows (R, w), and SiLU, by what is quickest for so many."""
    if len(x) <= (diffusion_kernels.SOME if silu else diffusion_kernels.FEW):
        return diffusion_kernels.linear(x, layer.weight, layer.bias, silu)
    out = layer(x)
    return nn.functional.silu(out, inplace=True) if silu else out


def is_fusable(net: Any) -> bool:
    """Whether the kernels may read the weights of a denoiser: all layers are those that it was published with."""
    linears = [net.input_proj, net.final_layer.linear, net.final_layer.adaLN_modulation[1]]
    for block in net.res_blocks:
        linears += [block.mlp[0], block.mlp[2], block.adaLN_modulation[1]]
    norms = all(type(block.in_ln) is nn.LayerNorm and block.in_ln.elementwise_affine for block in net.res_blocks)
    last = getattr(net.final_layer, "norm_final", None)
    bare = last is None or (type(last) is nn.LayerNorm and not last.elementwise_affine and last.eps == 1e-6)
    return norms and bare and all(map(is_plain, linears))


def fused(model: Adapter, ops: Ops | None = None) -> Adapter:
    """The model over the same network with fused kernels between its matrix products."""
    head = model.head
    if isinstance(head, DiffusionHead) and is_fusable(head.net):
        head = FusedDiffusionHead(head.net, head.channels, head.bound)
    elif isinstance(head, CategoricalHead):
        head = FusedCategoricalHead(head.logits, head.words)
    return model.replace(ops=ops or FusedOps(), head=head)
