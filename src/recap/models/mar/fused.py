"""The diffusion head with fused kernels, and with its whole loop replayed from graphs; needs Triton."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.canvas import Draw
from recap.core.noise import PositionNoise
from recap.core.protocols import Head
from recap.core.steps import Step
from recap.models.layers import is_plain
from recap.models.mar import kernels
from recap.models.mar.diffusion import AHEAD, DiffusionHead, Update, updates

Replay = Callable[[Hashable, Callable[[], Tensor]], Tensor]  # what does work under a key, later from a graph


def fused_head(head: Head) -> Head | None:
    """A faster head that draws what this one draws, if it is a diffusion head whose layers are all plain ones."""
    if isinstance(head, DiffusionHead) and is_fusable(head.net):
        return FusedDiffusionHead(head.net, head.channels, head.bound)
    return None


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

    def denoise(self, features: Tensor, random: Tensor, step: Step, branches: int = 1) -> Tensor:
        guide = torch.empty(2, dtype=torch.float32, device=features.device)
        guide[0].fill_(step.guidance)  # a copy from the host would wait for the device
        guide[1].fill_(step.temperature)
        return self.run(features, random, guide, branches, updates(step.head_steps, step.solver))

    def run(
        self, features: Tensor, random: Tensor, guide: Tensor, branches: int, table: tuple[Update, ...]
    ) -> Tensor:
        """`denoise` with guidance scale and temperature in a tensor (2), so that a graph can be told others."""
        net, steps = self.net, len(table)
        numbers, times = self.prepared(table, features.device)
        condition = net.cond_embed(features).flatten(0, 1)  # (R, w)
        rows = len(condition)
        x = torch.empty(rows // branches, self.channels, dtype=torch.float32, device=features.device)
        h, u = torch.empty_like(condition), torch.empty_like(condition)
        out: Tensor | None = None
        ahead = max(1, min(steps, AHEAD[True] // (rows * len(self.weight) * condition.element_size())))
        for begin in range(0, steps, ahead):
            moments = times[begin : begin + ahead, None] + condition  # (S', R, w)
            many = nn.functional.linear(nn.functional.silu(moments, inplace=True), self.weight, self.bias)
            for q, modulation in enumerate(many, start=begin):
                fresh = random[:, q] if q < random.shape[1] else None
                kernels.reverse_step(
                    x, out, q - 1, numbers, guide, fresh, self.entry, modulation, h, u, branches, self.bound
                )
                out = self.predicted(h, u, modulation)
        kernels.reverse_step(x, out, steps - 1, numbers, guide, None, self.entry, None, h, u, branches, self.bound)
        return x.view(len(random), -1, self.channels)

    def predicted(self, h: Tensor, u: Tensor, modulation: Tensor) -> Tensor:
        """What the network says (R, 2C) of its input `h` (R, w), whose modulated norm is `u`; both are used up."""
        width = h.shape[1]
        for i, block in enumerate(self.blocks):
            update = product(block.mlp[2], product(block.mlp[0], u, silu=True))
            norm, eps = self._norm(i + 1)
            kernels.gate_norm_(h, update, modulation, (3 * i + 2) * width, (3 * i + 3) * width, norm, eps, u)
        return product(self.net.final_layer.linear, u)

    def _norm(self, block: int) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """Weights and epsilon of the norm before a block; the one before the last layer has no weights."""
        if block == len(self.blocks):
            return None, 1e-6
        norm = self.blocks[block].in_ln
        return (norm.weight, norm.bias), norm.eps

    def graphed(self, new_graphs: Callable[[], Replay]) -> GraphedDiffusionHead:
        """The same head, its loop replayed from graphs."""
        return GraphedDiffusionHead(self, new_graphs)

    def prepared(self, table: tuple[Update, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """The numbers of every reverse step (S, 6) and the embedded timesteps (S, w), made once."""
        if table not in self._prepared:
            with torch.inference_mode(False), torch.no_grad():
                rows = [[u.a, u.b, u.c, u.d, u.log_high, u.log_low] for u in table]
                times = self.embed_times(self._timesteps(table, device), self.weight.dtype)
                self._prepared[table] = torch.tensor(rows, dtype=torch.float32, device=device), times
        return self._prepared[table]


def product(layer: nn.Linear, x: Tensor, silu: bool = False) -> Tensor:
    """A linear layer of rows (R, w), and SiLU, by what is quickest for so many."""
    if len(x) <= (kernels.SOME if silu else kernels.FEW):
        return kernels.linear(x, layer.weight, layer.bias, silu)
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


class GraphedDiffusionHead:
    """A diffusion head whose whole loop is one graph for each number of rows and steps."""

    def __init__(self, head: FusedDiffusionHead, new_graphs: Callable[[], Replay]) -> None:
        self.head, self.new_graphs = head, new_graphs
        self.release()

    def release(self) -> None:
        self.graphs = self.new_graphs()
        self.memory: dict[Hashable, tuple[Tensor, Tensor, Tensor]] = {}

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        """As the head draws it; the number of tokens is rounded up to one of few, and the rest thrown away."""
        count, padded = features.shape[1], bucket(features.shape[1])
        random = self.head.noise(step, noise)  # (B, S, n, C)
        shape = (features.shape[0], padded, features.shape[2])
        key = (*shape, step.head_steps, step.solver, branches, features.dtype)
        if key not in self.memory:
            room = features.new_zeros(shape)
            draws = random.new_zeros(len(random), random.shape[1], padded, self.head.channels)
            self.memory[key] = room, draws, random.new_zeros(2)
        room, draws, guide = self.memory[key]
        room[:, :count] = features
        draws[:, :, :count] = random
        guide[0].fill_(step.guidance)
        guide[1].fill_(step.temperature)
        table = updates(step.head_steps, step.solver)
        drawn = self.graphs(key, lambda: self.head.run(room, draws, guide, branches, table))
        return Draw(drawn[:, :count])


def bucket(count: int) -> int:
    """The number of tokens that a draw is rounded up to."""
    if count <= 12:
        return count
    step = 4 if count <= 32 else 8 if count <= 64 else 16
    return -(-count // step) * step
