"""What a call is given, checked: labels, numbers of images, randomness."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import numpy as np
import torch
from torch import Generator, Tensor

from recap.core.noise import image_generators

Generators = Generator | Sequence[Generator]
Labels = int | Sequence[int] | Tensor | np.ndarray


def labels_of(labels: Labels | None, classes: int) -> list[int] | None:
    """Labels as a list, or None for a model without classes."""
    if not classes:
        if labels is not None:
            raise ValueError("this model is unconditional and takes no labels; say num_images=... instead")
        return None
    if labels is None:
        raise ValueError(f"this model draws {classes} classes; give labels, one from 0 to {classes - 1} an image")
    wrong = ValueError(f"labels are {labels!r}; expected an integer or a flat sequence of integers")
    if isinstance(labels, str) or (isinstance(labels, Sequence) and any(isinstance(x, bool) for x in labels)):
        raise wrong
    try:
        values = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong from error
    if not values.numel():
        raise ValueError("labels are empty; give at least one")
    if values.dtype == torch.bool or values.is_floating_point() or values.is_complex() or values.ndim > 1:
        raise wrong
    found: list[int] = values.reshape(-1).tolist()
    outside = [label for label in found if not 0 <= label < classes]
    if outside:
        raise ValueError(f"label {outside[0]} is out of range; this model has classes 0 to {classes - 1}")
    return found


def batch_of(num: int | None, **given: Sized | None) -> int:
    """How many images are asked for, where one of anything serves for all of them."""
    counts = {name: len(each) for name, each in given.items() if each is not None}
    batch = max(counts.values(), default=None) if num is None else num
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise ValueError(f"num_images is {num!r}; say how many images to draw, at least 1")
    if any(count not in (1, batch) for count in counts.values()):
        said = ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items())
        raise ValueError(f"{said} and num_images={num} do not go together; give one for all, or one for each")
    return batch


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
