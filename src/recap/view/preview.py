"""A run shown in the terminal while it goes on; it needs the package rich (the extra `preview`)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from PIL import Image

if TYPE_CHECKING:
    from recap.pipelines import Pipeline
    from recap.view.terminal import Preview

Opened = Callable[[str], "Preview | None"]


@contextmanager
def previews(
    wanted: bool,
    pipe: Pipeline,
    num: int,
    *,
    names: Sequence[str] | None = None,
    before: Image.Image | None = None,
    processes: int = 1,
) -> Iterator[Opened]:
    """Something that opens a preview of a run of `num` images; without a terminal or rich it says so once.

    `names` say what each image shows, `before` is the picture that a run begins with.
    """
    file = terminal() if wanted else None
    missing = importlib.util.find_spec("rich") is None
    if wanted and (file is None or missing):
        reason = 'rich: pip install "recap-mgm[preview]"' if missing else "a terminal whose cursor can be moved"
        print(f"--preview needs {reason}; going on without it", file=sys.stderr)
    if file is None or missing:
        yield lambda title: None
        return
    from rich.console import Console
    from rich.live import Live

    from recap.view.terminal import Preview

    console = Console(file=file)
    with ExitStack() as stack:

        def opened(title: str) -> Preview:
            stack.close()
            live = Live(
                console=console,
                auto_refresh=False,
                vertical_overflow="crop",
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr.isatty(),
            )
            return Preview(
                pipe, stack.enter_context(live), title, num, names=names, before=before, processes=processes
            )

        yield opened


def terminal() -> TextIO | None:
    """The stream to show a run on: the one for messages if it is a terminal, or else the one for output."""
    if os.environ.get("TERM", "") in ("", "dumb", "unknown") and os.name != "nt":
        return None
    for file in (sys.stderr, sys.stdout):
        if file is not None and file.isatty() and (file.encoding or "").lower().startswith("utf"):
            return file
    return None
