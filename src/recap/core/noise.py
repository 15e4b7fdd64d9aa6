"""Randomness: one stream for each image, so that an image never depends on its neighbours in the batch.

Number i of an image's stream is a hash of the image's key and i (SplitMix64), so a batch is drawn by a few operations
over all of its images and nothing waits for a device. Every draw and position has numbers of its own, so that what
is drawn for a position does not depend on which others are drawn with it. What comes after the hash is made of
operations that IEEE 754 rounds exactly (no library has a part, but for `exponential`): every device and batch
size gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

import torch
from torch import Tensor

Make = Callable[[Tensor, tuple[int, ...]], Tensor]  # of bits (..., n) something (..., *shape)

_MASK = (1 << 64) - 1
STEP, MIX, REMIX = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants

POSITION_BITS, DRAW_BITS = 20, 38  # numbers that a position has in a draw, and that a draw has


def image_seed(seed: int, index: int) -> int:
    """The seed of image `index` in a run with `seed`: well mixed, the same for any batch or process."""
    z = (seed * STEP + (index + 1) * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * MIX) & _MASK
    z = ((z ^ (z >> 27)) * REMIX) & _MASK
    return (z ^ (z >> 31)) >> 1  # torch takes 63 bits without sign trouble


def image_generators(seed: int, indices: Iterable[int]) -> list[torch.Generator]:
    """One generator for each image index of a run with `seed`: on the CPU, so that every device draws the same."""
    return [torch.Generator().manual_seed(image_seed(seed, index)) for index in indices]


def stream_key(generator: torch.Generator) -> int:
    """The key of an image's stream: one number of its generator, wherever that lives."""
    bounds = -(2**63), 2**63 - 1
    return int(torch.randint(*bounds, (1,), generator=generator, device=generator.device).item())


class Numbers:
    """What can be made of the numbers of a stream; `shape` is what stands behind the leading dimensions."""

    def _draw(self, make: Make, shape: tuple[int, ...], count: int) -> Tensor:
        """What `make` makes of `count` numbers."""
        raise NotImplementedError

    def uniform(self, *shape: int) -> Tensor:
        return self._draw(_uniform, shape, math.prod(shape))  # (..., *shape) in [0, 1)

    def normal(self, *shape: int) -> Tensor:
        return self._draw(_normal, shape, (math.prod(shape) + 1) // 2)  # (..., *shape)

    def gumbel(self, *shape: int) -> Tensor:
        return self._draw(_gumbel, shape, math.prod(shape))  # (..., *shape)

    def exponential(self, *shape: int) -> Tensor:
        return self._draw(_exponential, shape, (math.prod(shape) + 1) // 2)  # (..., *shape), above 0


class Purpose(IntEnum):
    """What numbers are for; each has its own."""

    VALUES = 0
    RANKS = 1
    REDRAWN = 2  # values that are drawn again once the ranks are known


class Noise(Numbers):
    """Draws for a batch, row b from the stream of image b, delivered on `device`.

    What is drawn from it directly goes through the stream (B, ...); `at` has the numbers of a draw at positions.
    """

    def __init__(
        self,
        streams: Sequence[torch.Generator | int],
        device: torch.device | str,
        draw: Callable[[Tensor, int | Tensor, int, Make, tuple[int, ...]], Tensor] | None = None,
    ) -> None:
        """`streams` has one for each image: its generator, or the `stream_key` of that; engines bring a `draw`."""
        if not streams:
            raise ValueError("no generators were given; sampling needs one torch.Generator for each image")
        self.device, self.made = torch.device(device), draw or made
        keys = [stream if isinstance(stream, int) else stream_key(stream) for stream in streams]
        # Apple's GPUs have no float64: there the numbers are made by the CPU
        where = "cpu" if self.device.type == "mps" else self.device
        self.keys = torch.tensor(keys, device=where).unsqueeze(1)  # (B, 1)
        self._drawn = 0  # so many numbers of every stream are used up

    def __len__(self) -> int:
        return len(self.keys)

    def permutation(self, n: int) -> Tensor:
        return self._draw(_permutation, (n,), n)  # (B, n)

    def at(self, draw: int, purpose: Purpose, positions: Tensor) -> PositionNoise:
        """The numbers of `positions` (B, n) in draw number `draw`: the same wherever their rows lie."""
        return PositionNoise(self, 1 + draw * len(Purpose) + purpose, positions)

    def _draw(self, make: Make, shape: tuple[int, ...], count: int) -> Tensor:
        first = self._drawn + 1
        self._drawn += count
        return self.made(self.keys, first, count, make, shape).to(self.device)


class PositionNoise(Numbers):
    """The numbers of one draw, row (b, i) from those that image b has for position `positions[b, i]`."""

    def __init__(self, noise: Noise, draw: int, positions: Tensor) -> None:
        self.noise, self.keys = noise, noise.keys
        self.first = (positions.to(noise.keys.device) << POSITION_BITS) + (draw << DRAW_BITS)  # (B, n)

    def _draw(self, make: Make, shape: tuple[int, ...], count: int) -> Tensor:
        return self.noise.made(self.keys, self.first, count, make, shape).to(self.noise.device)  # (B, n, *shape)


def random_bits(keys: Tensor, first: int | Tensor, count: int) -> Tensor:
    """64 bits each: `count` numbers of the streams `keys` (B, 1) from number `first` on, or from each of (B, n)."""
    numbers = torch.arange(count, device=keys.device)
    if isinstance(first, Tensor) and first.ndim == 2:
        first, keys = first.unsqueeze(-1), keys.unsqueeze(-1)
    z = (numbers + first) * signed(STEP) + keys
    for by, factor in ((30, MIX), (27, REMIX)):
        z ^= _shifted(z, by)
        z *= signed(factor)
    z ^= _shifted(z, 31)
    return z  # (B, count) or (B, n, count)


def made(keys: Tensor, first: int | Tensor, count: int, make: Make, shape: tuple[int, ...]) -> Tensor:
    """What `make` makes of the numbers of all streams from number `first` on."""
    return make(random_bits(keys, first, count), shape)


def _uniform(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    return (_shifted(bits, 40).float() * 2.0**-24).reshape(*bits.shape[:-1], *shape)


def _normal(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Pairs after Box and Muller: all cosines, then all sines."""
    radius = (-2.0 * _log((_shifted(bits, 32).double() + 0.5) * 2.0**-32)).sqrt()
    cos, sin = _turn((bits & 0xFFFFFFFF).double() * 2.0**-32)
    pairs = torch.cat([(radius * cos).float(), (radius * sin).float()], dim=-1)
    return pairs[..., : math.prod(shape)].reshape(*bits.shape[:-1], *shape)


def _gumbel(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    uniform = (_shifted(bits, 32).double() + 0.5) * 2.0**-32
    return (-_log(-_log(uniform))).float().reshape(*bits.shape[:-1], *shape)


def _exponential(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Two of each number: from all upper halves, then from all lower ones.

    There are many of these, so the logarithm is torch's own, whose last bit may differ between devices.
    """
    count, (*rows, numbers) = math.prod(shape), bits.shape
    halves = bits.view(torch.uint32).view(*rows, numbers, 2)  # lower ones first
    uniform = torch.empty((*rows, 2 * numbers), dtype=torch.float32, device=bits.device)
    uniform[..., :numbers], uniform[..., numbers:] = halves[..., 1], halves[..., 0]
    clocks = uniform.add_(0.5).mul_(-(2.0**-32)).log1p_().neg_()
    return clocks[..., :count].reshape(*rows, *shape)


def _permutation(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    return bits.argsort(dim=1, stable=True)


def signed(bits: int) -> int:
    """64 bits as the integer that torch means by them."""
    return bits - (1 << 64) if bits >> 63 else bits


def _shifted(bits: Tensor, by: int) -> Tensor:
    """64 bits shifted to the right, zeros coming in."""
    shifted = bits >> by
    shifted &= (1 << (64 - by)) - 1
    return shifted


def _series(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A polynomial, lowest coefficient first; product and sum are rounded one by one on every device."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _log(x: Tensor) -> Tensor:
    """The natural logarithm of positive float64 values, to 1e-10."""
    fraction, exponent = torch.frexp(x)  # x = fraction * 2**exponent, fraction in [0.5, 1)
    low = fraction < math.sqrt(0.5)
    fraction = torch.where(low, 2.0 * fraction, fraction)
    exponent = exponent.double() - low.double()
    s = (fraction - 1.0) / (fraction + 1.0)
    return exponent * math.log(2) + 2.0 * s * _series(s * s, [1 / k for k in range(1, 15, 2)])


def _turn(turns: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of float64 angles in [0, 1) of a full turn, to 1e-10."""
    quarter = (4.0 * turns + 0.5).floor()  # 0..4, the nearest one
    x = (turns - 0.25 * quarter) * (2 * math.pi)  # within an eighth of a turn
    square = x * x
    cos = _series(square, [(-1) ** k / math.factorial(2 * k) for k in range(8)])
    sin = x * _series(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(8)])
    odd = (quarter == 1) | (quarter == 3)
    sign_cos = torch.where((quarter == 1) | (quarter == 2), -1.0, 1.0)
    sign_sin = torch.where((quarter == 2) | (quarter == 3), -1.0, 1.0)
    return sign_cos * torch.where(odd, sin, cos), sign_sin * torch.where(odd, cos, sin)
