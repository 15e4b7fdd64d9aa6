"""MAR's head: every token is drawn by a short diffusion process, given its feature vector."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from recap.core.canvas import Draw
from recap.core.heads import guided
from recap.core.noise import Noise
from recap.core.schedule import Step
from recap.models.mar.denoiser import Denoiser

TRAINED_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Update:
    """The numbers of one reverse step: x0 = a x - b eps, mean = c x0 + d x, and the range of log-variances."""

    timestep: int
    a: float
    b: float
    c: float
    d: float
    log_high: float
    log_low: float


@lru_cache(maxsize=32)
def updates(steps: int) -> tuple[Update, ...]:
    """The respaced process with `steps` steps, in the order in which it is run (noise first)."""
    if not 2 <= steps <= TRAINED_STEPS:
        raise ValueError(f"the diffusion head was asked for {steps} steps; it needs 2 to {TRAINED_STEPS}")

    def signal(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    products, product = [], 1.0
    for i in range(TRAINED_STEPS):
        product *= 1 - min(1 - signal((i + 1) / TRAINED_STEPS) / signal(i / TRAINED_STEPS), 0.999)
        products.append(product)
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
        table.append(
            Update(
                timestep=timestep,
                a=math.sqrt(1 / now),
                b=math.sqrt(1 / now - 1),
                c=beta * math.sqrt(before) / (1 - now),
                d=(1 - before) * math.sqrt(1 - beta) / (1 - now),
                log_high=math.log(beta),
                log_low=log_low,
            )
        )
        before = now
    return tuple(reversed(table))


class DiffusionHead:
    """Draws latents with the network of MAR's diffusion loss; the update runs in float32.

    The temperature scales the noise of every step, guidance acts on the predicted noise alone, and the
    predicted variance stays that of the conditional branch. `bound` limits the predicted latents: in the first
    step they are the network's error times 20,000, which a network that was trained for long keeps small.
    """

    def __init__(self, net: Denoiser, channels: int, bound: float | None = None) -> None:
        self.net = net
        self.channels = channels
        self.bound = bound
        self._times: dict[tuple[int, torch.device], Tensor] = {}

    def draw(self, features: Tensor, step: Step, branches: int, noise: Noise) -> Draw:
        random = noise.normal(step.head_steps, features.shape[1], self.channels)  # (B, S, n, C)
        return Draw(self.denoise(features, random, branches, step.guidance, step.token_temperature))

    def denoise(
        self, features: Tensor, random: Tensor, branches: int = 1, scale: float = 1.0, temperature: float = 1.0
    ) -> Tensor:
        """Latents (B, n, C) from features (branches * B, n, D) and all the noise of the run (B, S, n, C)."""
        table = updates(random.shape[1])
        # (S, w), once for a draw and not once for a token
        times = self.net.time_embed(self._timesteps(len(table), features.device))
        condition = self.net.cond_embed(features)  # (branches * B, n, w), constant over the steps
        x = random[:, 0]
        for q, update in enumerate(table):
            noisy = x.to(features.dtype).repeat(branches, 1, 1)
            out = self.net.denoise(noisy, times[q] + condition).float()  # (branches * B, n, 2C)
            eps, v = out.chunk(2, dim=-1)
            eps, share = guided(eps, branches, scale), (v[: len(x)] + 1) / 2
            clean = update.a * x - update.b * eps
            if self.bound is not None:
                clean = clean.clamp(-self.bound, self.bound)
            x = update.c * clean + update.d * x
            if q + 1 < len(table):
                log_variance = share * update.log_high + (1 - share) * update.log_low
                x = x + torch.exp(log_variance / 2) * temperature * random[:, q + 1]
        return x

    def _timesteps(self, steps: int, device: torch.device) -> Tensor:
        """The timesteps of the process on the device, brought there once and not in every draw."""
        key = (steps, device)
        if key not in self._times:
            with torch.inference_mode(False):
                self._times[key] = torch.tensor([u.timestep for u in updates(steps)], device=device)
        return self._times[key]  # (S)
