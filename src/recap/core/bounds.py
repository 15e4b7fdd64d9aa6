"""Numbers of configurations: what they may be is declared where they are, and checked before anything is built."""

from __future__ import annotations

import dataclasses
from typing import Any

LAYERS = 512  # of a stack
WIDTH = 2**16  # of a row, or channels of a picture
COUNT = 2**24  # of codes, classes and the like
TOKENS = 2**20  # of an image or a text
LEVELS = 12  # of resolution, each half of the one before
SCALE = 1e6  # of what is neither small nor large in a sound file


def bounded(default: Any, least: float, most: float) -> Any:
    """A field of numbers from `least` to `most`: one, a tuple of them, or where the default is None, none.

    They are integers if `least` is.
    """
    return dataclasses.field(default=default, metadata={"bounds": (least, most)})


def check_bounds(config: Any) -> None:
    """Refuse a configuration with a number out of its bounds: a file that asks for that is damaged, or means harm."""
    for field in dataclasses.fields(config):
        if "bounds" in field.metadata:
            check_number(field.name, getattr(config, field.name), *field.metadata["bounds"], like=field.default)


def check_number(name: str, value: object, least: float, most: float, *, like: object = 0) -> None:
    """Refuse a value that is no number, or tuple of numbers, in its bounds; `like` is a value that may be."""
    if value is None and like is None:
        return
    kinds = int if isinstance(least, int) else int | float
    parts: Any = value if isinstance(like, tuple) and isinstance(value, tuple) else (value,)
    fits = all(isinstance(part, kinds) and not isinstance(part, bool) and least <= part <= most for part in parts)
    if not fits or not 1 <= len(parts) <= LEVELS:
        what = "an integer" if isinstance(least, int) else "a number"
        what = f"1 to {LEVELS} times {what}" if isinstance(like, tuple) else what
        raise ValueError(f"{name} is {value!r}; it must be {what} from {least} to {most}")
