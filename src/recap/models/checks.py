"""Checks of sizes, with errors that say what to change."""

from __future__ import annotations

from collections.abc import Iterable


def check_positive(config: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a positive integer")


def check_depth(*depths: int) -> None:
    """A file that asks for a million layers is damaged, or means harm."""
    for depth in depths:
        if not isinstance(depth, int) or not 0 <= depth <= 512:
            raise ValueError(f"a stack has {depth!r} layers; expected an integer from 0 to 512")


def check_width(width: int, heads: int) -> None:
    if width < 1 or heads < 1 or width % heads:
        raise ValueError(f"width {width} does not divide into {heads} heads; width must be a multiple of heads")
