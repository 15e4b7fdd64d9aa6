"""Images and texts in a folder: files with numbers for names, and what the end of a run adds."""

from __future__ import annotations

import shutil
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from recap.checkpoints.safe_files import read_json
from recap.core.noise import image_seed
from recap.runs.files import atomic_write, write_json
from recap.runs.folder import (
    ABOUT,
    KEPT,
    MANIFEST,
    SHARDS,
    TIMED,
    Entry,
    RunFolder,
    entries,
    entry_of,
    names_in,
)
from recap.runs.works import Done, Work
from recap.view.say import say_above
from recap.view.sheet import as_png


class NumberedFolder(RunFolder):
    """Files named by their numbers, records of each batch beside them, and a manifest of all.

    A file counts once a record names it and its bytes are those recorded; anything else is made again.
    """

    noun: ClassVar[str]  # what is in a file
    ending: ClassVar[str]
    labelled: ClassVar[bool]  # whether labels are classes

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
        self._done: dict[int, Entry] = {}  # size and sha256 of files
        self._listing: dict[str, Entry] = {}  # of all files, as the manifest has them

    def file(self, index: int) -> Path:
        return self.path / f"{index:06d}.{self.ending}"

    @abstractmethod
    def encoded(self, result: Done) -> bytes:
        """What is in the file of a result."""

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
            path = self.file(index)
            if index < self.num and path.is_file() and entry == entry_of(path.read_bytes()):
                self._done[index] = entry
        lost = sorted({*candidates} - {*self._done})
        if lost:
            say_above(
                f"{len(lost)} {self.noun}(s) of {self.path} are damaged or gone and are made again, "
                f"the first is {lost[0]}"
            )
        self._listing = {self.file(i).name: self._done[i] for i in sorted(self._done)}
        self.write_manifest(images=self._listing)
        for path in (self.path / SHARDS).glob("[0-9]*.json"):
            path.unlink()
        (self.path / SHARDS).mkdir(exist_ok=True)
        return {*self._done}

    def write(self, results: Sequence[Done]) -> None:
        record: dict[str, Entry] = {}
        for result in results:  # every file whole, then the record that says so
            index, content = result.work.index, self.encoded(result)
            with atomic_write(self.file(index)) as file:
                file.write(content)
            record[self.file(index).name] = entry_of(content)
        if record:
            first = min(result.work.index for result in results)
            write_json(self.path / SHARDS / f"{first:06d}.json", record)

    def finish(self, works: Sequence[Work], about: Mapping[str, Any]) -> None:
        """List all images; `about` is what is said of a run that has made some."""
        self._done |= self._recorded()
        self.about, images = dict(about or self._said()), {}
        for work in works:
            path = self.file(work.index)
            if work.index not in self._done or not path.is_file():
                raise OSError(f"{self.noun} {work.index} has vanished from {self.path}; run the same command again")
            seed = image_seed(work.seed or 0, work.index)
            label = {} if work.label is None or not self.labelled else {"label": work.label}
            images[path.name] = {**self._done[work.index], "seed": seed, **label}
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
        recorded = (name for record in self._records() for name in names_in(record))
        for name in {*self.listed(), *recorded}:
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / SHARDS, ignore_errors=True)

    def refuse_foreign(self, *, new: bool) -> None:
        paths = map(self.file, range(self.num)) if new else ()
        for path in (*paths, *(self.path / name for name in self.extras if name not in self.files)):
            if path.exists():
                raise ValueError(
                    f"{path} exists but no {MANIFEST} says which run it belongs to; choose another --out, or replace "
                    f"it with --overwrite"
                )

    def _numbered(self, path: Path) -> bool:
        """Whether a file of this run has this name."""
        return path.stem.isdecimal() and path.name == self.file(int(path.stem)).name and int(path.stem) < self.num

    def _said(self) -> dict[str, Any]:
        """What was said of a run whose record is not written yet."""
        try:
            return dict(read_json(self.path / SHARDS / ABOUT))
        except (OSError, ValueError, TypeError):
            return {}

    def _recorded(self) -> dict[int, Entry]:
        """What the records of batches say."""
        return {number: entry for record in self._records() for number, entry in entries(record).items()}

    def _records(self) -> Iterator[Any]:
        """The records of batches that can be read."""
        for path in sorted((self.path / SHARDS).glob("[0-9]*.json")):
            try:
                yield read_json(path)
            except ValueError:
                say_above(f"{path} is damaged; its {self.noun}s are made again")


class ImageFolder(NumberedFolder):
    """Pictures."""

    noun, ending, labelled = "image", "png", True

    @cached_property
    def images(self) -> dict[int, Image.Image]:
        """Those of this process, where the run is small."""
        return {}

    def encoded(self, result: Done) -> bytes:
        image = result.image
        if self.num <= KEPT:
            self.images[result.work.index] = image
        return as_png(image)

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

    def __init__(
        self,
        path: str | Path,
        num: int,
        settings: Mapping[str, Any],
        said: Callable[[Done], str],
        *,
        extras: Collection[str] = (),
        inputs: Collection[str | Path] = (),
    ) -> None:
        """`said` gives the text of a result."""
        super().__init__(path, num, settings, extras=extras, inputs=inputs)
        self.said = said

    def encoded(self, result: Done) -> bytes:
        return self.said(result).encode()

    def texts(self) -> Iterator[str]:
        """All texts, by their numbers."""
        return (self.file(index).read_bytes().decode() for index in range(self.num))


def _opened(path: Path) -> Image.Image:
    with Image.open(path, formats=("PNG",)) as picture:
        return picture.convert("RGB")
