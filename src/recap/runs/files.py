"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: str | Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a draft beside `path` that takes its place when all is on disk; an error leaves `path` as it was."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(
                f"{path} cannot be written ({error.strerror or error}); make room, then run the same command again: "
                f"what is finished is kept"
            ) from error
        raise


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file for people and machines."""
    with atomic_write(path, "w") as file:
        file.write(json.dumps(content, indent=2) + "\n")
