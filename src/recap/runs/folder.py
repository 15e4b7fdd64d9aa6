"""Folders that grow whole file by whole file, and know at any moment what they hold."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from recap.checkpoints.safe_files import read_json
from recap.runs.files import atomic_write, write_json
from recap.runs.lock import FolderLock
from recap.runs.works import Done

MANIFEST, SHARDS = "manifest.json", "shards"
DRAFT = re.compile(r"\.[\w-]+\.(png|json|npz)\.\d+")
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip file knows; a clock would make every file another one
MAX_SHOWN = 60  # characters of a setting that are still worth printing
KEPT = 64  # images of a small run, which stay in memory for a sheet of all
Report = Callable[[str], object]
About = Callable[[int], Mapping[str, Any]]


class RunFolder(ABC):
    """What one run has made so far; a folder belongs to one run, and to one command at a time."""

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any]) -> None:
        """`settings` are all that images 0 to `num` - 1 depend on."""
        self.path, self.num = Path(path), num
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.lock = FolderLock(self.path)

    def prepare(self, *, overwrite: bool, patience: float, report: Report) -> list[int]:
        """Take the folder and say which images it lacks; for the first process alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock.take(shared=False, patience=patience)
        if overwrite:
            (self.path / MANIFEST).unlink(missing_ok=True)  # first, so that what is left of it counts for nothing
            self.clear()
        manifest = self._manifest()
        if manifest is not None:
            self._compare(manifest["settings"])
        elif not overwrite:
            self.refuse_foreign()
        for path in (*self.path.iterdir(), *(self.path / SHARDS).glob(".*")):
            if DRAFT.fullmatch(path.name):  # of a process that was killed
                path.unlink()
        found = self.find({} if manifest is None else manifest, report)
        return sorted({*range(self.num)} - found)

    @abstractmethod
    def find(self, manifest: Mapping[str, Any], report: Report) -> set[int]:
        """The images that are there and what they were, and a manifest that says so."""

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

    def finish(self, about: About) -> None:
        """Bring everything together once all is there; `about` says what else there is to know of an image."""
        return

    def write_manifest(self, **more: Any) -> None:
        write_json(self.path / MANIFEST, {"settings": self.settings, **more})

    def _manifest(self) -> dict[str, Any] | None:
        path = self.path / MANIFEST
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            if not isinstance(content["settings"], dict) or not isinstance(content.get("images", {}), dict):
                raise TypeError("settings and images are expected to be objects")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged ({type(error).__name__}: {error}); choose another --out, or start anew with "
                f"--overwrite"
            ) from error
        return dict(content)

    def _compare(self, theirs: Mapping[str, Any]) -> None:
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


class ImageFolder(RunFolder):
    """Pictures named by their numbers, records of each batch beside them, and a manifest of all.

    A picture counts once a record names it and its bytes are those recorded; anything else is made again.
    """

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any]) -> None:
        super().__init__(path, num, settings)
        self.images: dict[int, Image.Image] = {}  # of this process, where the run is small
        self._done: dict[int, dict[str, Any]] = {}  # size and sha256 of pictures

    def picture(self, index: int) -> Path:
        return self.path / f"{index:06d}.png"

    def find(self, manifest: Mapping[str, Any], report: Report) -> set[int]:
        candidates = {**entries(manifest.get("images")), **self._recorded(report)}
        self._done = {}
        for index, entry in candidates.items():
            path = self.picture(index)
            if index < self.num and path.is_file() and entry == entry_of(path.read_bytes()):
                self._done[index] = entry
        lost = sorted({*candidates} - {*self._done})
        if lost:
            report(
                f"{len(lost)} image(s) of {self.path} are damaged or gone and are made again, the first is {lost[0]}"
            )
        self.write_manifest(images={f"{i:06d}.png": self._done[i] for i in sorted(self._done)})
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)
        (self.path / SHARDS).mkdir(exist_ok=True)
        return {*self._done}

    def write(self, results: Sequence[Done]) -> None:
        record = {}
        for result in results:  # every picture whole, then the record that says so
            image, stream = result.image, io.BytesIO()
            image.save(stream, "PNG")
            with atomic_write(self.picture(result.work.index)) as file:
                file.write(stream.getvalue())
            record[str(result.work.index)] = entry_of(stream.getvalue())
            if self.num <= KEPT:
                self.images[result.work.index] = image
        if record:
            write_json(self.path / SHARDS / f"{results[0].work.index:06d}.json", record)

    def finish(self, about: About) -> None:
        self._done |= self._recorded(lambda _: None)
        images = {}
        for index in range(self.num):
            if index not in self._done or not self.picture(index).is_file():
                raise OSError(f"image {index} has vanished from {self.path}; run the same command again")
            images[f"{index:06d}.png"] = {**self._done[index], **about(index)}
        self.write_manifest(images=images)
        shutil.rmtree(self.path / SHARDS)

    def kept(self) -> int:
        return len(self._done | self._recorded(lambda _: None))

    def clear(self) -> None:
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)
        for path in self.path.glob("*.png"):
            if re.fullmatch(r"\d{6,}", path.stem):
                path.unlink()

    def refuse_foreign(self) -> None:
        for index in range(self.num):
            if self.picture(index).exists():
                raise ValueError(
                    f"{self.picture(index)} exists but no {MANIFEST} says which run it belongs to; choose another "
                    f"--out, or replace it with --overwrite"
                )

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
            archive.open(zipfile.ZipInfo("arr_0.npy", EPOCH), "w", force_zip64=True) as array,
        ):
            np.lib.format.write_array_header_1_0(array, header)
            for index in range(self.num):
                array.write(np.asarray(_opened(self.picture(index))).tobytes())
        return target

    def _recorded(self, report: Report) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for path in sorted((self.path / SHARDS).glob("[0-9]*.json")):
            try:
                found |= entries(read_json(path))
            except ValueError:
                report(f"{path} is damaged; its images are made again")
        return found


def entry_of(content: bytes) -> dict[str, Any]:
    """A file that was written: how long it is, and what is in it."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def entries(record: object) -> dict[int, dict[str, Any]]:
    """Entries by the numbers of their images; those that make no sense are left out."""
    found: dict[int, dict[str, Any]] = {}
    for name, value in record.items() if isinstance(record, dict) else ():
        number = str(name).removesuffix(".png")
        if isinstance(value, dict) and number.isdecimal() and len(number) < 12:
            found[int(number)] = {key: value.get(key) for key in ("size", "sha256")}
    return found


def _opened(path: Path) -> Image.Image:
    with Image.open(path, formats=("PNG",)) as picture:
        return picture.convert("RGB")
