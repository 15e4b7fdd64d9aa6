"""Classes by name."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

SHOWN = 5


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
