"""The small network that denoises one token given its feature vector."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class TimeEmbedding(nn.Module):
    """Sinusoidal features of the diffusion timestep (cosines first), then two linear layers."""

    def __init__(self, width: int, features: int = 256) -> None:
        super().__init__()
        self.features = features
        self.mlp = nn.Sequential(nn.Linear(features, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        half = self.features // 2
        rates = torch.exp(torch.arange(half, device=t.device, dtype=torch.float32) * (-math.log(10000) / half))
        angles = t.float().unsqueeze(-1) * rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=-1)  # (n, 256)
        return self.mlp(waves.to(next(self.mlp.parameters()).dtype))  # (n, w)


class ResidualBlock(nn.Module):
    """Modulated norm, two linear layers, gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class FinalLayer(nn.Module):
    """Modulated norm without parameters, and the output projection; no gate."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift)


class Denoiser(nn.Module):
    """Predicts noise and variance of a noisy token: the MLP of MAR's diffusion loss."""

    def __init__(self, channels: int, condition: int, width: int, depth: int) -> None:
        super().__init__()
        self.time_embed = TimeEmbedding(width)
        self.cond_embed = nn.Linear(condition, width)
        self.input_proj = nn.Linear(channels, width)
        self.res_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))
        self.final_layer = FinalLayer(width, 2 * channels)

    def forward(self, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        """x: (n, C) noisy tokens, t: (n) timesteps of 0..999, c: (n, D) features -> (n, 2C)."""
        return self.denoise(x, self.time_embed(t) + self.cond_embed(c))

    def denoise(self, x: Tensor, y: Tensor) -> Tensor:
        """The same from the embedded time and condition `y` (n, w)."""
        h = self.input_proj(x)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)


class DiffusionLoss(nn.Module):
    """Holds the denoiser under its official name."""

    def __init__(self, channels: int, condition: int, width: int, depth: int) -> None:
        super().__init__()
        self.net = Denoiser(channels, condition, width, depth)
