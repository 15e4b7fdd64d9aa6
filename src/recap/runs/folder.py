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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from recap.checkpoints.safe_files import read_json
from recap.core.noise import image_seed
from recap.runs.files import atomic_write, naming, write_json
from recap.runs.works import Done, Work
from recap.view.say import say_above

if sys.platform != "win32":  # which has no such locks; there nothing is locked
    import fcntl

MANIFEST, RECORD, SHARDS, LOCK = "manifest.json", "run.json", "shards", ".lock"
EXTRAS = (RECORD, "grid.png", "strip.png", "compare.png", "images.npz")  # what the end of a run may write
TIMED = (RECORD, "compare.png")  # those that say how long something took, and are others each time
ABOUT = "about.json"  # among the shards, until the record is written
DRAFT = re.compile(r"\.[\w-]+\.(png|json|npz)\.\d+")
MOST_THREADS = 4096
MAX_SHOWN = 60  # characters of a setting that are still worth printing
KEPT = 64  # images of a small run, which stay in memory for a sheet of all
Entry = dict[str, Any]  # what a manifest says of an image


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

    def listed(self) -> tuple[dict[int, Entry], set[str]]:
        """The images and other files that a manifest lists, whichever run it is of; none if it is damaged."""
        try:
            content = read_json(self.path / MANIFEST)
            return entries(content.get("images")), {*EXTRAS} & {*content.get("files", EXTRAS)}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}, set()

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


class ImageFolder(RunFolder):
    """Pictures named by their numbers, records of each batch beside them, and a manifest of all.

    A picture counts once a record names it and its bytes are those recorded; anything else is made again.
    """

    def __init__(
        self,
        path: str | Path,
        num: int,
        settings: Mapping[str, Any],
        *,
        extras: Collection[str] = (),
        inputs: Collection[str | Path] = (),
    ) -> None:
        """`extras` are the other files that the run will write, and `inputs` files that it must not."""
        super().__init__(path, num, settings)
        self.extras, self.inputs = extras, inputs
        self.images: dict[int, Image.Image] = {}  # of this process, where the run is small
        self._done: dict[int, Entry] = {}  # size and sha256 of pictures
        self._listing: dict[str, Entry] = {}  # of all pictures, as the manifest has them

    def picture(self, index: int) -> Path:
        return self.path / f"{index:06d}.png"

    def prepare(self, *, overwrite: bool = False, patience: float = 0.0) -> list[int]:
        for path in map(Path, self.inputs):
            if path.resolve().parent == self.path.resolve() and (path.name in self.extras or self._numbered(path)):
                raise ValueError(f"{path} is an input and would be written; choose another --out")
        return super().prepare(overwrite=overwrite, patience=patience)

    def find(self, images: Mapping[int, Entry]) -> set[int]:
        self.files |= {name: self.files.get(name) for name in self.extras}
        candidates = {**images, **self._recorded()}
        self._done = {}
        for index, entry in candidates.items():
            path = self.picture(index)
            if index < self.num and path.is_file() and entry == entry_of(path.read_bytes()):
                self._done[index] = entry
        lost = sorted({*candidates} - {*self._done})
        if lost:
            say_above(
                f"{len(lost)} image(s) of {self.path} are damaged or gone and are made again, the first is {lost[0]}"
            )
        self._listing = {f"{i:06d}.png": self._done[i] for i in sorted(self._done)}
        self.write_manifest(images=self._listing)
        for path in (self.path / SHARDS).glob("[0-9]*.json"):
            path.unlink()
        (self.path / SHARDS).mkdir(exist_ok=True)
        return {*self._done}

    def write(self, results: Sequence[Done]) -> None:
        record: dict[int, Entry] = {}
        for result in results:  # every picture whole, then the record that says so
            index, image, stream = result.work.index, result.image, io.BytesIO()
            image.save(stream, "PNG")
            with atomic_write(self.picture(index)) as file:
                file.write(stream.getvalue())
            record[index] = entry_of(stream.getvalue())
            if self.num <= KEPT:
                self.images[index] = image
        if record:
            write_json(self.path / SHARDS / f"{min(record):06d}.json", record)

    def finish(self, works: Sequence[Work], about: Mapping[str, Any]) -> None:
        """List all images; `about` is what is said of a run that has made some."""
        self._done |= self._recorded()
        self.about, images = dict(about or self._said()), {}
        for work in works:
            path = self.picture(work.index)
            if work.index not in self._done or not path.is_file():
                raise OSError(f"image {work.index} has vanished from {self.path}; run the same command again")
            label = {} if work.label is None else {"label": work.label}
            images[path.name] = {**self._done[work.index], "seed": image_seed(work.seed or 0, work.index), **label}
        self._listing = images
        write_json(self.path / SHARDS / ABOUT, self.about)
        self.write_manifest(images=images)

    def lacks(self, name: str) -> bool:
        """Whether a file beside the images is not there, or not what was written."""
        path, entry = self.path / name, self.files.get(name)
        if entry is None or not path.is_file():
            return True
        return not path.stat().st_size if name in TIMED else entry != entry_of(path.read_bytes())

    def keep(self, files: Mapping[str, bytes]) -> None:
        """Write files beside the images, whole, and then that they are there; this ends the run."""
        for name, content in files.items():
            with atomic_write(self.path / name) as file:
                file.write(content)
        self.files |= {name: {} if name in TIMED else entry_of(content) for name, content in files.items()}
        self.write_manifest(images=self._listing)
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)

    def kept(self) -> int:
        return len(self._done | self._recorded())

    def clear(self) -> None:
        images, files = self.listed()
        for path in (*map(self.picture, {**images, **self._recorded()}), *(self.path / name for name in files)):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)

    def refuse_foreign(self, *, new: bool) -> None:
        paths = map(self.picture, range(self.num)) if new else ()
        for path in (*paths, *(self.path / name for name in self.extras if name not in self.files)):
            if path.exists():
                raise ValueError(
                    f"{path} exists but no {MANIFEST} says which run it belongs to; choose another --out, or replace "
                    f"it with --overwrite"
                )

    def _numbered(self, path: Path) -> bool:
        """Whether an image of this run has this name."""
        return path.stem.isdecimal() and path.name == self.picture(int(path.stem)).name and int(path.stem) < self.num

    def shown(self) -> list[Image.Image]:
        """All images of a small run; those that another process or an earlier run has made are read."""
        return [self.images.get(i) or _opened(self.picture(i)) for i in range(self.num if self.num <= KEPT else 0)]

    def pack(self) -> Path:
        """All pictures as `arr_0` of (n, height, width, 3) in uint8 in one npz, as the usual FID tools read it."""
        target, first = self.path / "images.npz", _opened(self.picture(0))
        header = {"descr": "|u1", "fortran_order": False, "shape": (self.num, first.height, first.width, 3)}
        with (
            atomic_write(target) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
            archive.open("arr_0.npy", "w", force_zip64=True) as array,
        ):
            np.lib.format.write_array_header_1_0(array, header)
            for index in range(self.num):
                array.write(np.asarray(_opened(self.picture(index))).tobytes())
        return target

    def _said(self) -> dict[str, Any]:
        """What was said of a run whose record is not written yet."""
        try:
            return dict(read_json(self.path / SHARDS / ABOUT))
        except (OSError, ValueError, TypeError):
            return {}

    def _recorded(self) -> dict[int, Entry]:
        """What the records of batches say."""
        found: dict[int, Entry] = {}
        for path in sorted((self.path / SHARDS).glob("[0-9]*.json")):
            try:
                found |= entries(read_json(path))
            except ValueError:
                say_above(f"{path} is damaged; its images are made again")
        return found


def entry_of(content: bytes) -> Entry:
    """A file that was written: how long it is, and what is in it."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entries(record: object) -> dict[int, Entry]:
    """Entries by the numbers of their images; those that make no sense are left out."""
    found: dict[int, Entry] = {}
    for name, value in record.items() if isinstance(record, dict) else ():
        number = str(name).removesuffix(".png")
        if isinstance(value, dict) and number.isdecimal() and len(number) < 12:
            found[int(number)] = {key: value.get(key) for key in ("size", "sha256")}
    return found


def _opened(path: Path) -> Image.Image:
    with Image.open(path, formats=("PNG",)) as picture:
        return picture.convert("RGB")
