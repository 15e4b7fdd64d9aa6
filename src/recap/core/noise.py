"""Randomness: one stream for each image, so that an image never depends on its neighbours in the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

_MASK = (1 << 64) - 1


def image_seed(seed: int, index: int) -> int:
    """The seed of image `index` in a run with `seed`: well mixed, the same for any batch or process."""
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1  # torch takes 63 bits without sign trouble


def image_generators(seed: int, indices: Iterable[int], device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator for each image index of a run with `seed`."""
    return [torch.Generator(device).manual_seed(image_seed(seed, index)) for index in indices]


class Noise:
    """Draws for a batch, row b from the generator of image b, delivered on `device`.

    Generators may live on the CPU while the model is elsewhere: then the same seeds give the same noise on
    every device, for the price of a copy.
    """

    def __init__(self, generators: Sequence[torch.Generator], device: torch.device | str) -> None:
        if not generators:
            raise ValueError("no generators were given; sampling needs one torch.Generator for each image")
        self.generators = list(generators)
        self.device = torch.device(device)

    def __len__(self) -> int:
        return len(self.generators)

    def _blank(self, shape: tuple[int, ...]) -> Tensor:
        return torch.empty((len(self.generators), *shape), device=self.generators[0].device)

    def uniform(self, *shape: int) -> Tensor:
        out = self._blank(shape)
        for row, generator in zip(out, self.generators, strict=True):
            row.uniform_(generator=generator)
        return out.to(self.device, non_blocking=True)  # (B, *shape) in [0, 1)

    def normal(self, *shape: int) -> Tensor:
        out = self._blank(shape)
        for row, generator in zip(out, self.generators, strict=True):
            row.normal_(generator=generator)
        return out.to(self.device, non_blocking=True)  # (B, *shape)

    def gumbel(self, *shape: int) -> Tensor:
        tiny = torch.finfo(torch.float32).tiny
        exponential = torch.log(self.uniform(*shape).clamp_min(tiny)).neg().clamp_min(tiny)
        return exponential.log().neg()  # (B, *shape)

    def permutation(self, n: int) -> Tensor:
        rows = [torch.randperm(n, generator=g, device=g.device) for g in self.generators]
        return torch.stack(rows).to(self.device)  # (B, n)
