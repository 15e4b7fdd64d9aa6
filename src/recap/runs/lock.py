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

NAME = ".lock"


class FolderLock:
    """Held alone while a folder is prepared, then shared by all processes of the run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: IO[str] | None = None

    def take(self, *, shared: bool, patience: float = 0.0) -> None:
        """Take the folder, alone or with the other processes of this run.

        `patience` are seconds to wait for processes of an earlier run to notice its end.
        """
        file = self._file = self._file or self.path.open("a+")
        end = time.monotonic() + patience
        while sys.platform != "win32":
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    file.seek(0)
                    holder = file.readline().strip() or "another process"
                    raise BlockingIOError(
                        f"{self.path.parent} is in use by another run ({holder}); wait for it, or choose another "
                        f"--out"
                    ) from error
            time.sleep(0.1)
        if not shared:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
