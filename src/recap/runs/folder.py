"""Folders that grow whole file by whole file, and know at any moment what they hold."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import socket
import sys
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from PIL import Image

from recap.checkpoints.safe_files import read_json
from recap.core.noise import image_seed
from recap.runs.files import atomic_write, write_json
from recap.runs.works import Done, Work
from recap.view.progress import tqdm

if sys.platform != "win32":  # which has no such locks; there nothing is locked
    import fcntl

MANIFEST, RECORD, SHARDS, LOCK = "manifest.json", "run.json", "shards", ".lock"
DRAFT = re.compile(r"\.[\w-]+\.(png|txt|jsonl?|npz)\.\d+")
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
        self._lock: IO[str] | None = None

    def prepare(self, *, overwrite: bool = False, patience: float = 0.0) -> list[int]:
        """Take the folder and say which images it lacks; for the first process alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.take(patience=patience)
        if overwrite:
            (self.path / MANIFEST).unlink(missing_ok=True)  # first, so that what is left of it counts for nothing
            self.clear()
        images = self._earlier()
        if images is None and not overwrite:
            self.refuse_foreign()
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
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()

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

    def refuse_foreign(self) -> None:
        """Refuse files that no manifest accounts for: they may be somebody's own."""
        return

    def finish(self, works: Sequence[Work]) -> None:
        """Bring everything together once all of the works are there."""
        return

    def write_manifest(self, **more: Any) -> None:
        write_json(self.path / MANIFEST, {"settings": self.settings, **more})

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


class NumberedFolder(RunFolder):
    """Files named by their numbers, records of each batch beside them, and a manifest of all.

    A file counts once a record names it and its bytes are those recorded; anything else is made again.
    """

    noun: ClassVar[str]  # what is in a file
    ending: ClassVar[str]
    labelled: ClassVar[bool]  # whether labels are classes

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any]) -> None:
        super().__init__(path, num, settings)
        self._done: dict[int, Entry] = {}  # size and sha256 of files

    def file(self, index: int) -> Path:
        return self.path / f"{index:06d}.{self.ending}"

    @abstractmethod
    def encoded(self, result: Done) -> bytes:
        """What is in the file of a result."""

    def find(self, images: Mapping[int, Entry]) -> set[int]:
        candidates = {**images, **self._recorded()}
        self._done = {}
        for index, entry in candidates.items():
            path = self.file(index)
            if index < self.num and path.is_file() and entry == entry_of(path.read_bytes()):
                self._done[index] = entry
        lost = sorted({*candidates} - {*self._done})
        if lost:
            tqdm.write(
                f"{len(lost)} {self.noun}(s) of {self.path} are damaged or gone and are made again, "
                f"the first is {lost[0]}"
            )
        self.write_manifest(images={self.file(i).name: self._done[i] for i in sorted(self._done)})
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)
        (self.path / SHARDS).mkdir(exist_ok=True)
        return {*self._done}

    def write(self, results: Sequence[Done]) -> None:
        record: dict[int, Entry] = {}
        for result in results:  # every file whole, then the record that says so
            index, content = result.work.index, self.encoded(result)
            with atomic_write(self.file(index)) as file:
                file.write(content)
            record[index] = entry_of(content)
        if record:
            write_json(self.path / SHARDS / f"{min(record):06d}.json", record)

    def finish(self, works: Sequence[Work]) -> None:
        self._done |= self._recorded()
        images = {}
        for work in works:
            path = self.file(work.index)
            if work.index not in self._done or not path.is_file():
                raise OSError(f"{self.noun} {work.index} has vanished from {self.path}; run the same command again")
            seed = image_seed(work.seed or 0, work.index)
            about = {} if work.label is None or not self.labelled else {"label": work.label}
            images[path.name] = {**self._done[work.index], "seed": seed, **about}
        self.write_manifest(images=images)
        shutil.rmtree(self.path / SHARDS)

    def kept(self) -> int:
        return len(self._done | self._recorded())

    def clear(self) -> None:
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)
        (self.path / RECORD).unlink(missing_ok=True)
        for path in self.path.glob(f"*.{self.ending}"):
            if re.fullmatch(r"\d{6,}", path.stem):
                path.unlink()

    def refuse_foreign(self) -> None:
        for path in map(self.file, range(self.num)):
            if path.exists():
                raise ValueError(
                    f"{path} exists but no {MANIFEST} says which run it belongs to; choose another --out, or replace "
                    f"it with --overwrite"
                )

    def _recorded(self) -> dict[int, Entry]:
        """What the records of batches say."""
        found: dict[int, Entry] = {}
        for path in sorted((self.path / SHARDS).glob("[0-9]*.json")):
            try:
                found |= entries(read_json(path))
            except ValueError:
                tqdm.write(f"{path} is damaged; its {self.noun}s are made again")
        return found


class ImageFolder(NumberedFolder):
    """Pictures."""

    noun, ending, labelled = "image", "png", True

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any]) -> None:
        super().__init__(path, num, settings)
        self.images: dict[int, Image.Image] = {}  # of this process, where the run is small

    def encoded(self, result: Done) -> bytes:
        image = result.image
        if self.num <= KEPT:
            self.images[result.work.index] = image
        image.save(stream := io.BytesIO(), "PNG")
        return stream.getvalue()

    def shown(self) -> list[Image.Image]:
        """All images of a small run; those that another process or an earlier run has made are read."""
        return [self.images.get(i) or _opened(self.file(i)) for i in range(self.num if self.num <= KEPT else 0)]

    def pack(self) -> Path:
        """All pictures as `arr_0` of (n, height, width, 3) in uint8 in one npz, as the usual FID tools read it."""
        target, first = self.path / "images.npz", _opened(self.file(0))
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.num, first.height, first.width, 3)}
        with (
            atomic_write(target) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
            archive.open("arr_0.npy", "w", force_zip64=True) as array,
        ):
            np.lib.format.write_array_header_1_0(array, header)
            for index in range(self.num):
                array.write(np.asarray(_opened(self.file(index))).tobytes())
        return target


class TextFolder(NumberedFolder):
    """Texts, in UTF-8."""

    noun, ending, labelled = "text", "txt", False

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any], said: Callable[[Done], str]) -> None:
        """`said` gives the text of a result."""
        super().__init__(path, num, settings)
        self.said = said

    def encoded(self, result: Done) -> bytes:
        return self.said(result).encode()

    def texts(self) -> Iterator[str]:
        """All texts, by their numbers."""
        return (self.file(index).read_bytes().decode() for index in range(self.num))


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


def _opened(path: Path) -> Image.Image:
    with Image.open(path, formats=("PNG",)) as picture:
        return picture.convert("RGB")
