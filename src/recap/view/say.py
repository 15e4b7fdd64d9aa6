"""What commands say: names of models, classes and files come from elsewhere, and must not steer a terminal."""

from __future__ import annotations

import sys
from typing import IO


def printable(text: str) -> str:
    """A text in which all that would move a cursor, or change how it reads, is written out."""
    return "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)


def say(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines, to standard output unless said otherwise, at once; the only way in which anything is printed."""
    print(printable(text), file=file or sys.stdout, flush=True)


def say_above(text: str, *, file: IO[str] | None = None) -> None:
    """Print lines above a progress bar, if there is one."""
    from recap.view.progress import tqdm

    tqdm.write(printable(text), file=file)
