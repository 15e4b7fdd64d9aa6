"""Classes: found by their names, and planned for the images of a run."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from recap.checkpoints.safe_files import read_text
from recap.core.noise import image_seed

RANDOM = "random"
SEED_OFFSET = 0x5EED  # labels and images of one seed are drawn apart
SHOWN = 5  # names of classes in a message


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
