"""A run shown in the terminal while it goes on; it needs the package rich (the extra `preview`)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from recap.pipelines import Pipeline
    from recap.view.terminal import Preview


@contextmanager
def preview(
    wanted: bool, pipe: Pipeline, num: int, title: str, names: Sequence[str] | None = None
) -> Iterator[Preview | None]:
    """What shows a run of `num` images, if it is wanted; without a terminal or rich it says so and is None.

    `names` say what each image shows.
    """
    file = terminal() if wanted else None
    missing = importlib.util.find_spec("rich") is None
    if file is None or missing:
        if wanted:
            reason = 'rich: pip install "recap-mgm[preview]"' if missing else "a terminal whose cursor can be moved"
            print(f"--preview needs {reason}; going on without it", file=sys.stderr)
        yield None
        return
    from rich.console import Console

    from recap.view.terminal import Preview, Screen

    with Screen(Console(file=file)) as screen:
        yield Preview(pipe, screen, title, num, names)


def terminal() -> TextIO | None:
    """The stream to show a run on: the one for messages if it is a terminal, or else the one for output."""
    if os.environ.get("TERM", "") in ("", "dumb", "unknown") and os.name != "nt":
        return None
    for file in (sys.stderr, sys.stdout):
        if file is not None and file.isatty() and (file.encoding or "").lower().startswith("utf"):
            return file
    return None
