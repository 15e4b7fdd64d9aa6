"""What a call is asked for: labels and randomness, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from recap.core.noise import image_generators

Labels = int | Sequence[int] | Tensor | np.ndarray
Generators = torch.Generator | Sequence[torch.Generator]


def labels_of(labels: Labels | None, num_images: int | None, classes: int) -> Tensor | None:
    """One label for each image, or None for a model without classes."""
    if not classes:
        if labels is not None:
            raise ValueError("this model is unconditional and takes no labels; say num_images=... instead")
        if not isinstance(num_images, int) or isinstance(num_images, bool) or num_images < 1:
            raise ValueError(f"num_images is {num_images!r}; say how many images to draw, at least 1")
        return None
    if labels is None:
        raise ValueError(f"this model draws {classes} classes; give labels, one from 0 to {classes - 1} an image")
    checked = _label_tensor(labels)
    if num_images not in (None, len(checked)):
        raise ValueError(f"{len(checked)} labels were given but num_images is {num_images}; leave num_images out")
    outside = checked[(checked < 0) | (checked >= classes)]
    if len(outside):
        raise ValueError(f"label {outside[0].item()} is out of range; this model has classes 0 to {classes - 1}")
    return checked


def _label_tensor(labels: Labels) -> Tensor:
    wrong = ValueError(f"labels are {labels!r}; expected an integer or a flat sequence of integers")
    if isinstance(labels, str) or (isinstance(labels, Sequence) and any(isinstance(x, bool) for x in labels)):
        raise wrong
    try:
        values = torch.as_tensor(labels).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong from error
    if not values.numel():
        raise ValueError("labels are empty; give at least one")
    if values.dtype == torch.bool or values.is_floating_point() or values.is_complex() or values.ndim > 1:
        raise wrong
    return values.reshape(-1).long()


def generators_of(batch: int, generator: Generators | None, seed: int | None) -> list[torch.Generator]:
    """One generator for each image of a batch."""
    if generator is None:
        if seed is None:
            raise ValueError("give a seed= or a generator=, so that the images can be drawn again")
        if not isinstance(seed, int | np.integer):
            raise ValueError(f"seed is {seed!r}; it must be an integer")
        return image_generators(int(seed), range(batch))
    if seed is not None:
        raise ValueError("give either seed= or generator=, not both")
    if isinstance(generator, torch.Generator):
        seeds = torch.randint(2**62, (batch,), generator=generator, device=generator.device).tolist()
        return [torch.Generator(generator.device).manual_seed(s) for s in seeds]
    generators = list(generator) if isinstance(generator, Sequence) else [generator]
    if not all(isinstance(g, torch.Generator) for g in generators):
        raise ValueError(f"generator is {generator!r}; give a torch.Generator, or one for each image")
    if len(generators) != batch:
        raise ValueError(f"{len(generators)} generators were given for {batch} images; give one for each")
    return generators
