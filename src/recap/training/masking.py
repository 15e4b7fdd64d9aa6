"""How much is masked in training: the distributions of the three papers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# mean, deviation, low and high of a truncated normal
MAGE_RATIO = (0.55, 0.25, 0.0, 1.0)  # MAGE's, but not cut at 0.5: late steps see most tokens
MAR_RATIO = (1.0, 0.25, 0.7, 1.0)


def cosine_ratio(n: int, generator: torch.Generator) -> Tensor:
    """The masked share of `n` images as in MaskGIT: cos(pi/2 u), u uniform."""
    return torch.cos(math.pi / 2 * torch.rand(n, generator=generator, device=generator.device))  # (n)


def normal_ratio(n: int, generator: torch.Generator, mean: float, std: float, low: float, high: float) -> Tensor:
    """The masked share of `n` images as in MAGE and MAR: a normal cut off on both sides."""

    def cdf(x: float) -> float:
        return 0.5 * (1 + math.erf((x - mean) / std / math.sqrt(2)))

    u = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float64)
    u = cdf(low) + (cdf(high) - cdf(low)) * u
    return (mean + std * torch.special.ndtri(u)).clamp(low, high).float()  # (n)


def random_order(batch: int, tokens: int, generator: torch.Generator) -> Tensor:
    """Places of each image in an order of its own (B, N)."""
    return torch.rand(batch, tokens, generator=generator, device=generator.device).argsort(dim=1)


def first_masked(order: Tensor, ratios: Tensor) -> Tensor:
    """True at the first `ceil(ratio * tokens)` places of each order, at least one (B, N)."""
    tokens = order.shape[1]
    count = torch.ceil(ratios * tokens).clamp(1, tokens).unsqueeze(1)  # (B, 1)
    return order.argsort(dim=1) < count
