"""Classes: labels that are checked, names that are found, and which class each image of a run shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from recap.core.noise import image_seed

Labels = int | Sequence[int] | Tensor | np.ndarray
RANDOM = "random"
SEED_OFFSET = 0x5EED  # labels and images of one seed are drawn apart
MAX_BYTES = 10_000_000  # of a file of labels
SHOWN = 5  # names of classes in a message


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


def find_class(text: str, names: Sequence[str] | None, classes: int) -> int:
    """The class that `text` means: a name, a number, or the beginning or a part of one name only."""
    wanted = text.strip().casefold()
    folded = [name.strip().casefold() for name in names or ()]
    if wanted in folded:
        return folded.index(wanted)
    if wanted.removeprefix("-").isdecimal():
        number = int(wanted)
        if not 0 <= number < classes:
            raise ValueError(f"label {number} is out of range; this model has classes 0 to {classes - 1}")
        return number
    if names is None:
        raise ValueError(f"label {text!r} is no number, and this model has no class names; give 0 to {classes - 1}")
    if wanted:
        starting = [index for index, name in enumerate(folded) if name.startswith(wanted)]
        holding = [index for index, name in enumerate(folded) if wanted in name]
        for matches in (starting, holding):
            if len(matches) == 1:
                return matches[0]
        if holding:
            found = [names[index] for index in starting or holding]
            raise ValueError(f"label {text!r} fits {len(found)} classes: {_listed(found)}; say which")
    near = get_close_matches(wanted, folded, n=3, cutoff=0.5) or get_close_matches(wanted, folded, n=3, cutoff=0.0)
    close = " or ".join(repr(names[folded.index(name)]) for name in near)
    raise ValueError(f"no class is called {text!r}; did you mean {close}?")


def find_classes(text: str, names: Sequence[str] | None, classes: int) -> list[int]:
    """The classes in a text with commas between them; a name may have commas itself."""
    if any(name.strip().casefold() == text.strip().casefold() for name in names or ()):
        return [find_class(text, names, classes)]
    return [find_class(part, names, classes) for part in text.split(",")]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def random_labels(seed: int, num: int, classes: int) -> list[int]:
    """A class at random for each image; the first labels stay the same when there are more."""
    return [image_seed(image_seed(seed, SEED_OFFSET), index) % classes for index in range(num)]


def spread_labels(num: int, classes: int) -> list[int]:
    """Rising labels, as far apart as they can be."""
    return [index * classes // num for index in range(num)]


def even_labels(each: int, classes: int) -> list[int]:
    """Every class equally often, one round after another."""
    if each < 1:
        raise ValueError(f"--per-class is {each}; draw at least one image of each class")
    return [index % classes for index in range(each * classes)]


def read_labels(path: str | Path, names: Sequence[str] | None, classes: int) -> list[int]:
    """The labels in a file: numbers with space or commas between them, or a name or number on each line."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"--labels @{path}: there is no such file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(
            f"--labels @{path} has more than {MAX_BYTES:,} bytes; give a text with one class on each line"
        )
    try:
        lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"--labels @{path} is no text ({error}); give one class on each line") from error
    found: list[int] = []
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        try:
            if all(word.isdecimal() for word in words):
                found += [find_class(word, names, classes) for word in words]
            else:
                found += find_classes(line, names, classes)
        except ValueError as error:
            raise ValueError(f"--labels @{path}, line {number}: {error}") from error
    if not found:
        raise ValueError(f"--labels @{path} is empty; give one class on each line")
    return found


def planned_labels(
    given: Sequence[int | str] | None, num: int, names: Sequence[str] | None, classes: int, *, first: int = 0
) -> list[int] | None:
    """A label for each of the images `first` to `first + num` of a run; None where there are no classes.

    Given ones are taken in turn, by the image's index; without any, all classes are spread over the images.
    """
    if not classes:
        if given is not None:
            raise ValueError(f"{len(given)} label(s) were given but this model is unconditional; leave labels out")
        return None
    if given is None:
        return spread_labels(first + num, classes)[first:]
    if not given:
        raise ValueError("labels are empty; give at least one, or leave them out")
    found = [find_class(str(label), names, classes) for label in given]
    return [found[index % len(found)] for index in range(first, first + num)]


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """Which class image i shows, whatever the number of images: evenly, or in given proportions (`of`)."""

    classes: int
    borders: tuple[float, ...] | None = None

    @classmethod
    def of(cls, classes: int, counts: Sequence[int]) -> Self:
        """Labels in the proportions of `counts`, one for each class."""
        shares = np.asarray(counts, dtype=np.float64)
        if len(shares) != classes or shares.min() < 0 or shares.sum() <= 0:
            raise ValueError(
                f"{len(shares)} shares were given for {classes} classes; give one for each, none negative"
            )
        return cls(classes, tuple(np.cumsum(shares) / shares.sum()))

    def __call__(self, index: int) -> int:
        if self.borders is None:
            return index % self.classes
        place = ((index + 1) * 0.6180339887498949) % 1.0  # the golden ratio visits all parts of [0, 1) alike
        return min(int(np.searchsorted(self.borders, place, side="right")), self.classes - 1)
