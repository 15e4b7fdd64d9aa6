"""Folders that grow whole file by whole file, and know at any moment what they hold."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from recap.checkpoints.safe_files import read_json
from recap.runs.files import naming, write_json
from recap.runs.works import Done, Work

if sys.platform != "win32":  # which has no such locks; there nothing is locked
    import fcntl

MANIFEST, RECORD, SHARDS, LOCK = "manifest.json", "run.json", "shards", ".lock"
EXTRAS = (RECORD, "grid.png", "strip.png", "compare.png", "images.npz", "texts.jsonl", "compare.jsonl")  # of its end
TIMED = (RECORD, "compare.png", "compare.jsonl")  # those that say how long something took, and are others each time
ABOUT = "about.json"  # among the shards, until the record is written
NUMBERED = re.compile(r"\d{6,11}\.(png|txt)")  # what a run is for
DRAFT = re.compile(r"\.[\w-]+\.(png|txt|jsonl?|npz)\.\d+")
MOST_THREADS = 4096
MAX_SHOWN = 60  # characters of a setting that are still worth printing
KEPT = 64  # images of a small run, which stay in memory for a sheet of all
Entry = dict[str, Any]  # what a manifest says of an image or text


class RunFolder(ABC):
    """What one run has made so far; a folder belongs to one run, and to one command at a time.

    The kernel keeps the lock: it is gone with the last process, however that ended.
    """

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any]) -> None:
        """`settings` are all that images 0 to `num` - 1 depend on."""
        self.path, self.num = Path(path), num
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.about: dict[str, Any] = {}  # this run at its end: how long it took, and the like
        self.threads: int | None = None  # of each process, where the bits depend on it
        self.files: dict[str, Entry | None] = {}  # of this run beside its images; None: not written yet
        self._lock: IO[str] | None = None

    def prepare(self, *, overwrite: bool = False, patience: float = 0.0) -> list[int]:
        """Take the folder and say which images it lacks; for the first process alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.take(patience=patience)
        if overwrite:
            self.clear()
            (self.path / MANIFEST).unlink(missing_ok=True)
        images = self._earlier()
        if not overwrite:
            self.refuse_foreign(new=images is None)
        for path in (*self.path.iterdir(), *(self.path / SHARDS).glob(".*")):
            if DRAFT.fullmatch(path.name):  # of a process that was killed
                path.unlink()
        found = self.find(images or {})
        self.take(shared=True)
        return sorted({*range(self.num)} - found)

    def take(self, *, shared: bool = False, patience: float = 0.0) -> None:
        """Take the folder, alone while it is prepared, then with the other processes of this run.

        `patience` are seconds to wait for processes of an earlier run to notice its end.
        """
        file = self._lock = self._lock or (self.path / LOCK).open("a+")
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
                        f"{self.path} is in use by another run ({holder}); wait for it, or choose another --out"
                    ) from error
            time.sleep(0.1)
        if not shared:
            with naming(self.path / LOCK):
                os.ftruncate(file.fileno(), 0)
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())

    def release(self) -> None:
        """Let others have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @abstractmethod
    def find(self, images: Mapping[int, Entry]) -> set[int]:
        """The images that are there and what they were, where an earlier manifest had `images`; writes a new one."""

    @abstractmethod
    def write(self, results: Sequence[Done]) -> None:
        """Keep some images for good."""

    @abstractmethod
    def kept(self) -> int:
        """How many images are there by now."""

    @abstractmethod
    def clear(self) -> None:
        """Forget an earlier run."""

    def refuse_foreign(self, *, new: bool) -> None:
        """Refuse files that no manifest accounts for: they may be somebody's own. `new`: there is no manifest."""
        return

    def finish(self, works: Sequence[Work], about: Mapping[str, Any]) -> None:
        """Bring everything together once all of the works are there."""
        return

    def write_manifest(self, **more: Any) -> None:
        files = {"files": dict(sorted(self.files.items()))} if self.files else {}
        threads = {} if self.threads is None else {"threads": self.threads}
        write_json(self.path / MANIFEST, {"settings": self.settings, **threads, **more, **files})

    def listed(self) -> set[str]:
        """The files that a manifest lists, whichever run it is of; none if it is damaged."""
        try:
            content = read_json(self.path / MANIFEST)
            return names_in(content.get("images")) | {*EXTRAS} & {*content.get("files", EXTRAS)}
        except (OSError, ValueError, AttributeError, TypeError):
            return set()

    def _earlier(self) -> dict[int, Entry] | None:
        """The images in the manifest of an earlier run, which must have had the same settings."""
        path = self.path / MANIFEST
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            theirs, images = content["settings"], content.get("images", {})
            if not isinstance(theirs, dict) or not isinstance(images, dict):
                raise TypeError("settings and images are expected to be objects")
            files = content.get("files", dict.fromkeys(EXTRAS))  # there were none in earlier versions
            threads = content.get("threads")
            if threads is not None and (type(threads) is not int or not 0 < threads < MOST_THREADS):
                raise TypeError(f"threads are {threads!r}")
            self.threads = self.threads and (threads or self.threads)
            self.files = {name: files[name] for name in EXTRAS if name in files}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); choose another --out, or start anew with "
                f"--overwrite"
            ) from error
        others = []
        for key in sorted({*theirs, *self.settings}):
            there, here = theirs.get(key), self.settings.get(key)
            if there != here:
                shown = f"{there!r} there, {here!r} here"
                others.append(f"{key} ({shown})" if len(shown) <= MAX_SHOWN else key)
        if others:
            raise ValueError(
                f"{self.path} holds a run with other {', '.join(others)}; choose another --out, give the same "
                f"settings to go on with it, or start anew with --overwrite"
            )
        return entries(images)


def entry_of(content: bytes) -> Entry:
    """A file that was written: how long it is, and what is in it."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entries(record: object) -> dict[int, Entry]:
    """Entries by the numbers of their images; those that make no sense are left out."""
    found: dict[int, Entry] = {}
    for name, value in record.items() if isinstance(record, dict) else ():
        number = str(name).partition(".")[0]
        if isinstance(value, dict) and number.isdecimal() and len(number) < 12:
            found[int(number)] = {key: value.get(key) for key in ("size", "sha256")}
    return found


def names_in(record: object) -> set[str]:
    """The files of images or texts that a record names."""
    return {name for name in record if NUMBERED.fullmatch(name)} if isinstance(record, dict) else set()
