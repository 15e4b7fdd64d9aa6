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
    with naming(path):
        try:
            with draft.open(mode) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of a `with` block that writes say which file it was."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror or error}); make room, then run the same command again: "
            f"what is finished is kept"
        ) from error


def as_json(content: Any) -> str:
    """JSON for people and machines."""
    return json.dumps(content, indent=2) + "\n"


def write_json(path: str | Path, content: Any) -> None:
    """Write a JSON file for people and machines."""
    with atomic_write(path, "w") as file:
        file.write(as_json(content))
