"""One run in a folder at a time. The kernel keeps the lock: it is gone with the last process, however that ended."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import IO

if sys.platform != "win32":  # which has no such locks; there nothing is locked
    import fcntl

    ALONE, TOGETHER = fcntl.LOCK_EX, fcntl.LOCK_SH
else:
    ALONE, TOGETHER = 0, 0

NAME = ".lock"


class FolderLock:
    """Held alone while a folder is prepared, then shared by all processes of the run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: IO[str] | None = None

    def alone(self, patience: float = 0.0) -> None:
        """Take the folder; `patience` are seconds to wait for processes of an earlier run to notice its end."""
        self._file = self.path.open("a+")
        end = time.monotonic() + patience
        while not self._try(ALONE):
            if time.monotonic() >= end:
                raise BlockingIOError(self._taken())
            time.sleep(0.1)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def shared(self) -> None:
        """Hold the folder together with the other processes of this run."""
        if self._file is None:
            self._file = self.path.open("a+")
        if not self._try(TOGETHER):
            raise BlockingIOError(self._taken())

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _try(self, how: int) -> bool:
        assert self._file is not None
        if sys.platform != "win32":
            try:
                fcntl.flock(self._file, how | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def _taken(self) -> str:
        assert self._file is not None
        self._file.seek(0)
        holder = self._file.readline().strip() or "another process"
        return f"{self.path.parent} is in use by another run ({holder}); wait for it, or choose another --out"
