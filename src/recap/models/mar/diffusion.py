"""MAR's head: every token is drawn by a short diffusion process, given its feature vector."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from recap.core.attention import Norm
from recap.core.canvas import Draw
from recap.core.heads import guided
from recap.core.noise import PositionNoise
from recap.core.steps import Step

TRAINED_STEPS = 1000
AHEAD = (1 << 25, 1 << 30)  # bytes of modulation that are computed ahead, on the CPU and on a GPU
QUIET_FROM = 980  # the first of these steps for solvers without noise


@dataclass(frozen=True, slots=True)
class Update:
    """The numbers of one reverse step: x0 = a x - b eps, mean = c x0 + d x, and the range of log-variances.

    Solvers without noise have none of the latter.
    """

    timestep: int
    a: float
    b: float
    c: float
    d: float
    log_high: float = 0.0
    log_low: float = 0.0


@lru_cache(maxsize=1)
def signals() -> list[float]:
    """How much of the token's variance is left after each of the trained steps."""

    def signal(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    products, product = [], 1.0
    for i in range(TRAINED_STEPS):
        product *= 1 - min(1 - signal((i + 1) / TRAINED_STEPS) / signal(i / TRAINED_STEPS), 0.999)
        products.append(product)
    return products


@lru_cache(maxsize=64)
def updates(steps: int, solver: str = "ancestral") -> tuple[Update, ...]:
    """The respaced process with `steps` steps, in the order in which it is run (noise first)."""
    if not 2 <= steps <= TRAINED_STEPS:
        raise ValueError(f"the diffusion head was asked for {steps} steps; it needs 2 to {TRAINED_STEPS}")
    if solver != "ancestral":
        return _without_noise(steps)
    products = signals()
    kept = [round(i * (TRAINED_STEPS - 1) / (steps - 1)) for i in range(steps)]
    table, before, log_low = [], 1.0, 0.0
    for i, timestep in enumerate(kept):
        now = products[timestep]
        beta = 1 - now / before
        posterior = beta * (1 - before) / (1 - now)
        if i == 0:  # its variance is 0: the first entry copies the second
            follower = products[kept[1]]
            posterior = (1 - follower / now) * (1 - now) / (1 - follower)
        log_low = math.log(posterior)
        a, b = math.sqrt(1 / now), math.sqrt(1 / now - 1)
        c, d = beta * math.sqrt(before) / (1 - now), (1 - before) * math.sqrt(1 - beta) / (1 - now)
        table.append(Update(timestep, a, b, c, d, math.log(beta), log_low))
        before = now
    return tuple(reversed(table))


def _without_noise(steps: int) -> tuple[Update, ...]:
    """DDIM: the line to the next point, which begins a little below full noise.

    There predictions are not yet divided by nothing.
    """
    products = signals()
    least = TRAINED_STEPS / (2 * steps)  # the way from there to no noise is short
    kept = [round(least + i * (QUIET_FROM - least) / (steps - 1)) for i in range(steps)]
    table = []
    for i in reversed(range(steps)):
        now, after = products[kept[i]], products[kept[i - 1]] if i else 1.0
        ratio = math.sqrt((1 - after) / (1 - now))
        a, b = math.sqrt(1 / now), math.sqrt(1 / now - 1)
        table.append(Update(kept[i], a, b, math.sqrt(after) - ratio * math.sqrt(now), ratio))
    return tuple(table)


def bare_norm(x: Tensor) -> Tensor:
    """A layer norm without parameters, as it stands before the last layer."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


class DiffusionHead:
    """Draws latents with the network of MAR's diffusion loss; the update runs in float32.

    The temperature scales the noise of every step, guidance acts on the predicted noise alone, and the
    predicted variance stays that of the conditional branch. `bound` limits the predicted latents: in the first
    step they are the network's error times 20,000, which a network that was trained for long keeps small.
    """

    def __init__(self, net: Any, channels: int, bound: float | None = None) -> None:
        """`net` is a `Denoiser`, or the authors' own, which has the same parts."""
        self.net = net
        self.parts: list[Any] = [*net.res_blocks, net.final_layer]
        self.last_norm: Norm = getattr(net.final_layer, "norm_final", bare_norm)
        self.channels = channels
        self.bound = bound
        self._times: dict[tuple[tuple[Update, ...], torch.device], Tensor] = {}

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        return Draw(self.denoise(features, self.noise(step, noise), step, branches))

    def noise(self, step: Step, noise: PositionNoise) -> Tensor:
        """All that a draw needs (B, S, n, C): the beginning alone for solvers without noise."""
        drawn = noise.normal(step.head_steps if step.solver == "ancestral" else 1, self.channels)  # (B, n, S, C)
        return drawn.transpose(1, 2).contiguous()

    def denoise(self, features: Tensor, random: Tensor, step: Step, branches: int = 1) -> Tensor:
        """Latents (B, n, C) from features (branches * B, n, D) and all the noise of the run (B, S, n, C)."""
        table = updates(step.head_steps, step.solver)
        # (S, w), once for a draw and not once for a token
        times = self.embed_times(self._timesteps(table, features.device), features.dtype)
        condition = self.net.cond_embed(features)  # (branches * B, n, w), constant over the steps
        x = random[:, 0]
        modulations = self._modulation(times, condition)
        for q, (update, modulation) in enumerate(zip(table, modulations, strict=True), start=1):
            noisy = x.to(features.dtype).repeat(branches, 1, 1)
            out = self.predict(noisy, modulation).float()  # (branches * B, n, 2C)
            eps, v = out.chunk(2, dim=-1)
            eps, share = guided(eps, branches, step.guidance), (v[: len(x)] + 1) / 2
            clean = update.a * x - update.b * eps
            if self.bound is not None:
                clean = clean.clamp(-self.bound, self.bound)
            x = update.c * clean + update.d * x
            if q < random.shape[1]:
                log_variance = share * update.log_high + (1 - share) * update.log_low
                x = x + torch.exp(log_variance / 2) * step.temperature * random[:, q]
        return x

    def _modulation(self, times: Tensor, condition: Tensor) -> Iterator[list[Tensor]]:
        """The modulation of every part of the network for each step in turn.

        It depends on time and condition and not on the token, so that of many steps is one product: the larger part
        of the weights is read once for all of them and not once for each.
        """
        ahead = max(1, AHEAD[times.is_cuda] // (3 * len(self.parts) * condition.numel() * condition.element_size()))
        for first in range(0, len(times), ahead):
            moments = times[first : first + ahead]
            y = moments.view(-1, 1, 1, moments.shape[-1]) + condition  # (S', branches * B, n, w)
            yield from map(list, zip(*(part.adaLN_modulation(y) for part in self.parts), strict=True))

    def predict(self, x: Tensor, modulation: list[Tensor]) -> Tensor:
        """What the network says of noisy tokens (..., C), all parts being modulated by `modulation`."""
        h = self.net.input_proj(x)
        for block, own in zip(self.parts[:-1], modulation, strict=False):
            shift, scale, gate = own.chunk(3, dim=-1)
            h = h + gate * block.mlp(block.in_ln(h) * (1 + scale) + shift)
        shift, scale = modulation[-1].chunk(2, dim=-1)
        return self.net.final_layer.linear(self.last_norm(h) * (1 + scale) + shift)

    def embed_times(self, times: Tensor, dtype: torch.dtype) -> Tensor:
        """Timesteps (S) embedded (S, w)."""
        layer = self.net.time_embed
        if not hasattr(layer, "timestep_embedding"):
            return layer(times)
        # the authors' layer makes its waves in float32, whatever the precision of what follows
        return layer.mlp(layer.timestep_embedding(times, layer.frequency_embedding_size).to(dtype))

    def predict_at(self, x: Tensor, features: Tensor, timestep: int) -> Tensor:
        """What the network says of noisy tokens (B, n, C) at one of the trained steps, by its parts."""
        times = self.embed_times(torch.tensor([timestep], device=x.device), features.dtype)
        return self.predict(x, next(self._modulation(times, self.net.cond_embed(features))))

    def _timesteps(self, table: tuple[Update, ...], device: torch.device) -> Tensor:
        """The timesteps of the process on the device, brought there once and not in every draw."""
        key = (table, device)
        if key not in self._times:
            with torch.inference_mode(False):
                self._times[key] = torch.tensor([u.timestep for u in table], device=device)
        return self._times[key]  # (S)
