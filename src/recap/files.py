"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def written_whole(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a draft beside `path` that takes its place when all is on disk; an error leaves `path` as it was."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file for people and machines."""
    with written_whole(path, "w") as file:
        file.write(json.dumps(content, indent=2) + "\n")
