"""Where: orders in which tokens that are drawn together lie far apart, and the words for all orders.

Tokens of one sub-step do not know of each other, and neighbours depend on each other most.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from recap.core.noise import Noise
from recap.core.protocols import Selector
from recap.core.selection import ConfidenceOrder, InformedOrder, PrecomputedOrder, RandomOrder, ShuffledOrder

REPULSION = 1 << 16  # of neighbours in the grid, in whole numbers: sums are exact on every device
TAKEN = 1 << 40  # more than all other positions together


class HaltonOrder(PrecomputedOrder):
    """The Halton points of bases 2 and 3: position after position falls into the largest gap.

    All images have the same points, each shifted over the edges of the grid, flipped and transposed by its own noise.
    """

    def order(self, size: int, noise: Noise) -> Tensor:
        side = side_of(size)
        cells = torch.tensor(halton_cells(side), device=noise.device)
        drawn = noise.uniform(3)  # (B, 3)
        down, across = (drawn[:, :1] * side).long(), (drawn[:, 1:2] * side).long()
        kind = (drawn[:, 2:] * 8).long()  # one of the symmetries of a square
        rows, columns = (cells // side + down) % side, (cells % side + across) % side  # (B, N)
        rows = torch.where(kind & 1 > 0, side - 1 - rows, rows)
        columns = torch.where(kind & 2 > 0, side - 1 - columns, columns)
        return torch.where(kind & 4 > 0, columns * side + rows, rows * side + columns)


class BlueNoiseOrder(PrecomputedOrder):
    """Position after position where those before it are farthest, as if each repelled by 1 / distance².

    The nearest one alone would leave the second half of an order to chance, where every position has a neighbour.
    Distances go over the edges of the grid: inside of them, corners and edges would come first. Ties are broken
    by the image's noise, and the first position is one.
    """

    def order(self, size: int, noise: Noise) -> Tensor:
        forces = repulsion(side_of(size), noise.device)
        crowd = noise.permutation(size)  # (B, N) no two positions of an image are equal
        chosen = []
        for _ in range(size):
            chosen.append(crowd.argmin(dim=1))  # (B)
            crowd = crowd + forces[chosen[-1]]
        return torch.stack(chosen, dim=1)  # (B, N)


def side_of(size: int) -> int:
    side = math.isqrt(size)
    if side * side != size:
        raise ValueError(
            f"the model has {size} tokens, and this order is for square grids (256 tokens are 16 x 16); "
            f"use order=random, or FixedOrder with an order of your own"
        )
    return side


@lru_cache(maxsize=8)
def halton_cells(side: int) -> tuple[int, ...]:
    """The cells of a grid in the order in which Halton points first fall into them."""
    seen: dict[int, None] = {}
    number = 0
    while len(seen) < side * side:
        row, column = (mirrored(number, base, side) for base in (2, 3))
        seen.setdefault(row * side + column)
        number += 1
    return tuple(seen)


def mirrored(number: int, base: int, cells: int) -> int:
    """The cell of [0, 1) into which `number` falls when its digits are written backwards behind the point."""
    value, whole = 0, 1
    while number:
        number, digit = divmod(number, base)
        value, whole = value * base + digit, whole * base
    return value * cells // whole


def repulsion(side: int, device: torch.device) -> Tensor:
    """What each position (N, N) feels of a chosen one; whole multiples of N, between which ties have their room."""
    places = torch.arange(side, device=device)
    apart = (places[:, None] - places).abs()
    squares = torch.minimum(apart, side - apart).square()  # (side, side)
    distance = (squares[:, None, :, None] + squares[None, :, None, :]).reshape(side**2, side**2)
    return torch.where(distance > 0, REPULSION // distance.clamp_min(1), TAKEN) * side**2


def order_named(name: str, block: int | None) -> Selector:
    """The selector that a word means; in blocks, a random order is found as the run goes on."""
    return ShuffledOrder() if block is not None and name == "random" else ORDERS[name]()


ORDERS: dict[str, Callable[[], Selector]] = {
    "random": RandomOrder,
    "confidence": ConfidenceOrder,
    "informed": InformedOrder,
    "halton": HaltonOrder,
    "blue": BlueNoiseOrder,
}
