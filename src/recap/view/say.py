"""What commands say: names of models, classes and files come from elsewhere, and must not steer a terminal."""

from __future__ import annotations

import sys
import unicodedata
from typing import IO


def printable(text: str, keep: str = "\n") -> str:
    """A text with escapes in the place of all that a terminal would obey, or that nobody would see.

    Characters that move the cursor, set its colours or turn the direction of writing are such; those of `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign in keep or _harmless(sign) else repr(sign)[1:-1] for sign in text)


def say(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines, to standard output unless said otherwise, at once; the only way in which anything is printed."""
    print(printable(text), file=file or sys.stdout, flush=True)


def say_above(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines above a progress bar, if there is one."""
    from recap.view.progress import tqdm

    tqdm.write(printable(text), file=file)


def hand_over(text: str) -> None:
    """Print a text as it is, for programs and files, or in a terminal without anything that it would obey."""
    from recap.view.progress import tqdm

    tqdm.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text, file=sys.stdout)


def _harmless(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) == "Zs"  # spaces of other widths
