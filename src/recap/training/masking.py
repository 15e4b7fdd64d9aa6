"""How much is masked in training: the distributions of the three papers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

Ratio = tuple[float, float, float, float]  # mean, deviation, low and high of a truncated normal


def masked_ratio(ratio: Ratio | None, n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """The masked share of each of `n` images: a truncated normal, or MaskGIT's cosine for None."""
    if ratio is None:
        return cosine_ratio(n, generator, device)
    return truncated_normal_ratio(n, generator, device, *ratio)


def cosine_ratio(n: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """MaskGIT: cos(pi/2 u), u uniform, one ratio for each image."""
    return torch.cos(math.pi / 2 * torch.rand(n, generator=generator, device=device))  # (n)


def truncated_normal_ratio(
    n: int, generator: torch.Generator, device: torch.device, mean: float, std: float, low: float, high: float
) -> Tensor:
    """MAGE (0.55, 0.25 on [0.5, 1]) and MAR (1, 0.25 on [0.7, 1]): a normal cut off on both sides."""

    def cdf(x: float) -> float:
        return 0.5 * (1 + math.erf((x - mean) / std / math.sqrt(2)))

    u = cdf(low) + (cdf(high) - cdf(low)) * torch.rand(n, generator=generator, device=device, dtype=torch.float64)
    return (mean + std * torch.special.ndtri(u)).clamp(low, high).float()  # (n)


def random_order(batch: int, tokens: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Places of each image in an order of its own (B, N)."""
    return torch.rand(batch, tokens, generator=generator, device=device).argsort(dim=1)


def first_masked(order: Tensor, ratios: Tensor) -> Tensor:
    """True at the first `ceil(ratio * tokens)` places of each order, at least one (B, N)."""
    tokens = order.shape[1]
    count = torch.ceil(ratios * tokens).clamp(1, tokens).unsqueeze(1)  # (B, 1)
    return order.argsort(dim=1) < count
