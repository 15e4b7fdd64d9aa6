"""Which class each image of a run shows, by the number of the image alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recap.core.noise import image_seed
from recap.labels import find_class, find_classes

RANDOM = "random"
APART = 0x5EED  # labels and images of one seed are drawn apart
MOST = 10_000_000  # characters of a file of labels


def random_labels(seed: int, num: int, classes: int) -> list[int]:
    """A class at random for each image; the first labels stay the same when there are more."""
    return [image_seed(image_seed(seed, APART), index) % classes for index in range(num)]


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
    if path.stat().st_size > MOST:
        raise ValueError(f"--labels @{path} has more than {MOST:,} bytes; give a text with one class on each line")
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
