"""A run shown in the terminal while it goes on; it needs the package rich (the extra `preview`)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recap.pipelines import Pipeline, TextPipeline
    from recap.view.terminal import Preview
from recap.view.say import say


@contextmanager
def preview(
    wanted: bool, pipe: Pipeline | TextPipeline, num: int, title: str, names: Sequence[str] | None = None
) -> Iterator[Preview | None]:
    """What shows a run of `num` images or texts, if it is wanted; without a terminal or rich it says so and is None.

    `names` say what each image shows.
    """
    missing = importlib.util.find_spec("rich") is None
    if wanted and not missing:
        from rich.console import Console

        from recap.view.terminal import Preview, Screen
        from recap.view.words import TextPreview

        kind: Any = TextPreview if pipe.modality == "text" else Preview

        for console in (Console(stderr=True), Console()):
            if console.is_interactive and console.encoding.startswith("utf"):
                with Screen(console) as screen:
                    yield kind(pipe, screen, title, num, names)
                return
    if wanted:
        reason = 'rich: pip install "recap-mgm[preview]"' if missing else "a terminal whose cursor can be moved"
        say(f"--preview needs {reason}; going on without it", file=sys.stderr)
    yield None
