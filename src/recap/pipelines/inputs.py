"""What is asked for, checked: classes by number or name, numbers of images, randomness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from recap.checkpoints.safe_files import read_text
from recap.core.noise import image_generators, image_seed

Generators = Generator | Sequence[Generator]
Labels = int | Sequence[int] | Tensor | np.ndarray
RANDOM = "random"
SEED_OFFSET = 0x5EED  # labels and images of one seed are drawn apart
MOST_IMAGES = 2**20  # of one run
SHOWN = 5  # names of classes in a message


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


def check_count(num: int | None, name: str, what: str = "images to draw") -> int:
    """Refuse a number of images or texts that no run can have, before anything is made for each of them."""
    if not isinstance(num, int) or isinstance(num, bool) or not 1 <= num <= MOST_IMAGES:
        more = "; take other seeds for more" if isinstance(num, int) and num > MOST_IMAGES else ""
        raise ValueError(f"{name} is {num!r}; say how many {what}, at least 1 and at most {MOST_IMAGES:,}{more}")
    return num


def batch_of(num: int | None, **given: Sized | None) -> int:
    """How many images are asked for, where one of anything serves for all of them."""
    counts = {name: len(each) for name, each in given.items() if each is not None}
    batch = max(counts.values(), default=None) if num is None else num
    batch = check_count(batch, "num_images")
    if any(count not in (1, batch) for count in counts.values()):
        said = ", ".join(f"{count} {name}{'s' * (count > 1)}" for name, count in counts.items())
        raise ValueError(f"{said} and num_images={num} do not go together; give one for all, or one for each")
    return batch


def generators_of(batch: int, generator: Generators | None, seed: int | None, first: int = 0) -> Iterable[Generator]:
    """One generator for each of the images `first` to `first + batch`, made as it is wanted: it is large."""
    if generator is None:
        if seed is None:
            raise ValueError("give a seed= or a generator=, so that the images can be drawn again")
        if not isinstance(seed, int | np.integer):
            raise ValueError(f"seed is {seed!r}; it must be an integer")
        given = int(seed)
        return (image_generators(given, [index])[0] for index in range(first, first + batch))
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


def find_class(text: str, names: Sequence[str] | None, classes: int) -> int:
    """The class that `text` means: a name, a number, or the beginning or a part of one name only."""
    if not classes:
        raise ValueError("this model is unconditional; leave labels out")
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
        matches = starting or [index for index, name in enumerate(folded) if wanted in name]
        if len(matches) == 1:
            return matches[0]
        if matches:
            shown = ", ".join(names[index] for index in matches[:SHOWN])
            more = f" and {len(matches) - SHOWN} more" if len(matches) > SHOWN else ""
            raise ValueError(f"label {text!r} fits {len(matches)} classes: {shown}{more}; say which")
    near = get_close_matches(wanted, folded, n=3, cutoff=0.5) or get_close_matches(wanted, folded, n=3, cutoff=0.0)
    close = " or ".join(repr(names[folded.index(name)]) for name in near)
    raise ValueError(f"no class is called {text!r}; did you mean {close}?")


def find_classes(text: str, names: Sequence[str] | None, classes: int) -> list[int]:
    """The classes in a text with commas between them; a name may have commas itself."""
    if any(name.strip().casefold() == text.strip().casefold() for name in names or ()):
        return [find_class(text, names, classes)]
    return [find_class(part, names, classes) for part in text.split(",")]


def random_labels(seed: int, num: int, classes: int) -> list[int]:
    """A class at random for each image; the first labels stay the same when there are more."""
    return [image_seed(image_seed(seed, SEED_OFFSET), index) % classes for index in range(num)]


def proportional_labels(num: int, counts: Sequence[int]) -> list[int]:
    """Classes in the proportions of `counts`, one for each class; any beginning has about the same shares."""
    shares = np.asarray(counts, dtype=np.float64)
    if shares.min() < 0 or shares.sum() <= 0:
        raise ValueError(f"the shares of {len(shares)} classes are {counts}; give numbers of which none is negative")
    places = (np.arange(1, num + 1) * 0.6180339887498949) % 1.0  # the golden ratio visits all of [0, 1) alike
    found = np.searchsorted(np.cumsum(shares) / shares.sum(), places, side="right")
    return np.minimum(found, len(shares) - 1).tolist()


def read_labels(path: str | Path, names: Sequence[str] | None, classes: int) -> list[int]:
    """The labels in a file: numbers with space or commas between them, or a name or number on each line."""
    found, where = list[int](), ""
    try:
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            words, where = line.replace(",", " ").split(), f", line {number}"
            if all(word.isdecimal() for word in words):
                found += [find_class(word, names, classes) for word in words]
            else:
                found += find_classes(line, names, classes)
        if not found:
            where = ""
            raise ValueError("it has no classes")
    except (ValueError, OSError) as error:
        raise ValueError(f"--labels @{path}{where}: {error}; give one class on each line") from error
    return found


def planned_labels(
    given: Sequence[int | str] | None, num: int, names: Sequence[str] | None, classes: int, *, first: int = 0
) -> list[int] | None:
    """A label for each of the images `first` to `first + num` of a run; None where there are no classes.

    Given ones are taken in turn, by the image's index; without any, all classes are spread over the images.
    """
    if given is None:
        return [index * classes // (first + num) for index in range(first, first + num)] if classes else None
    if not given:
        raise ValueError("labels are empty; give at least one, or leave them out")
    # a number is a class even where another one is called like it
    found = [find_class(str(label), None if isinstance(label, int) else names, classes) for label in given]
    return [found[index % len(found)] for index in range(first, first + num)]
