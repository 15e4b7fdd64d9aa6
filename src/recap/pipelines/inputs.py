"""The randomness that a call is given, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Generator

from recap.core.noise import image_generators, stream_key

Generators = Generator | Sequence[Generator]


def generators_of(batch: int, generator: Generators | None, seed: int | None, first: int = 0) -> list[Generator]:
    """One generator for each of the images `first` to `first + batch`."""
    if generator is None:
        if seed is None:
            raise ValueError("give a seed= or a generator=, so that the images can be drawn again")
        if not isinstance(seed, int | np.integer):
            raise ValueError(f"seed is {seed!r}; it must be an integer")
        return image_generators(int(seed), range(first, first + batch))
    if seed is not None:
        raise ValueError("give either seed= or generator=, not both")
    if isinstance(generator, Generator):
        seeds = torch.randint(2**62, (batch,), generator=generator, device=generator.device).tolist()
        return [Generator(generator.device).manual_seed(s) for s in seeds]
    generators = list(generator) if isinstance(generator, Sequence) else [generator]
    if not all(isinstance(g, Generator) for g in generators):
        raise ValueError(f"generator is {generator!r}; give a torch.Generator, or one for each image")
    if len(generators) != batch:
        raise ValueError(f"{len(generators)} generators were given for {batch} images; give one for each")
    return generators


def keys_of(batch: int, generator: Generators | None, seed: int | None, first: int = 0) -> list[int]:
    """The random stream of each image."""
    return [stream_key(each) for each in generators_of(batch, generator, seed, first)]
