"""A folder of images that grows whole file by whole file, and knows at any moment what it holds."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recap.distributed.archives import write_npz, write_zip
from recap.distributed.lock import FolderLock
from recap.files import write_json, written_whole

MANIFEST, SHARDS, PARTS = "manifest.json", "shards", "parts"
FORMATS = ("png", "zip", "npz")
DRAFT = re.compile(r"\.((\d{6,}|grid|compare)\.png|\d{6,}\.json|(manifest|run)\.json|images\.(zip|npz))\.\d+")
LONG = 60  # characters of a setting that are still worth printing
Report = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that was written: how long it is, and what is in it."""

    size: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Entry:
        return cls(len(content), hashlib.sha256(content).hexdigest())

    def fits(self, path: Path) -> bool:
        """Whether `path` is that file still."""
        if not path.is_file() or path.stat().st_size != self.size:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256


class ImageFolder:
    """Pictures named by their numbers, records of each shard beside them, and a manifest of all.

    A picture counts once a record names it and its bytes are those recorded; anything else is drawn again.
    """

    def __init__(self, path: str | Path, form: str, num: int, settings: Mapping[str, Any]) -> None:
        """`settings` are all that the images hang on; a folder takes images of one kind only."""
        self.path, self.form, self.num = Path(path), form, num
        self.settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self.pictures = self.path if form == "png" else self.path / PARTS
        self.lock = FolderLock(self.path)
        self._done: dict[int, Entry] = {}

    @property
    def result(self) -> Path:
        """What the run is for: the folder, or the one file."""
        return self.path if self.form == "png" else self.path / f"images.{self.form}"

    def picture(self, index: int) -> Path:
        return self.pictures / f"{index:06d}.png"

    def prepare(self, *, overwrite: bool, patience: float, report: Report) -> list[int]:
        """Take the folder and say which images it lacks; for the first process alone."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.lock.alone(patience)
        if overwrite:
            self._clear()
        manifest = self._manifest()
        if manifest is not None:
            self._compare(manifest["settings"])
        elif not overwrite:
            self._refuse_foreign()
        for folder in (self.pictures, self.path / SHARDS):
            folder.mkdir(exist_ok=True)
        for folder in {self.path, self.pictures, self.path / SHARDS}:
            for path in folder.iterdir():
                if DRAFT.fullmatch(path.name):  # of a process that was killed
                    path.unlink()
        if manifest is not None and self._has_archive(manifest):
            return []
        self._done = self._found(manifest, report)
        self._write_manifest()
        self._drop_shards()
        return [index for index in range(self.num) if index not in self._done]

    def share(self) -> None:
        """Join the other processes that work here."""
        self.lock.shared()

    def write(self, images: Mapping[int, bytes]) -> None:
        """Keep some images for good: every picture whole, then the record that says so."""
        if not images:
            return
        for index, content in images.items():
            with _room(self.picture(index)), written_whole(self.picture(index)) as file:
                file.write(content)
        record = {str(index): asdict(Entry.of(content)) for index, content in images.items()}
        path = self.path / SHARDS / f"{min(images):06d}.json"
        with _room(path):
            write_json(path, record)

    def finish(self, about: Callable[[int], Mapping[str, Any]]) -> None:
        """Bring everything together once all is there; `about` says what else there is to know of an image."""
        if self.form != "png" and not self.picture(0).exists() and self.result.is_file():
            shutil.rmtree(self.path / PARTS, ignore_errors=True)
            shutil.rmtree(self.path / SHARDS, ignore_errors=True)
            return  # it was finished before
        self._done |= self._recorded(lambda _: None)
        lost = [i for i in range(self.num) if i not in self._done or not self.picture(i).is_file()]
        if lost:
            raise OSError(f"image {lost[0]} has vanished from {self.pictures}; run the same command again")
        archive = None
        if self.form != "png":
            write = write_zip if self.form == "zip" else write_npz
            with _room(self.result):
                write(self.result, [self.picture(index) for index in range(self.num)])
            with self.result.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            archive = asdict(Entry(self.result.stat().st_size, digest))
        self._write_manifest(about, archive)
        shutil.rmtree(self.path / SHARDS)
        if self.form != "png":
            shutil.rmtree(self.path / PARTS)

    def kept(self) -> int:
        """How many images are there by now."""
        return len(self._done | self._recorded(lambda _: None))

    def _manifest(self) -> dict[str, Any] | None:
        path = self.path / MANIFEST
        if not path.exists():
            return None
        try:
            content = json.loads(path.read_text())
            if not isinstance(content["settings"], dict) or not isinstance(content["images"], dict):
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
                others.append(f"{key} ({shown})" if len(shown) <= LONG else key)
        if others:
            raise ValueError(
                f"{self.path} holds a run with other {', '.join(others)}; choose another --out, give the same "
                f"settings to go on with it, or start anew with --overwrite"
            )

    def _refuse_foreign(self) -> None:
        """Pictures that nobody recorded may be somebody's own."""
        taken = [self.picture(i) for i in range(self.num) if self.picture(i).exists()]
        taken += [self.result] if self.form != "png" and self.result.exists() else []
        if taken:
            raise ValueError(
                f"{taken[0]} exists but no {MANIFEST} says which run it belongs to; choose another --out, or "
                f"replace it with --overwrite"
            )

    def _clear(self) -> None:
        """Forget an earlier run: its manifest first, so that what is left of it counts for nothing."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        self._drop_shards()
        for path in self.pictures.glob("*.png"):
            if re.fullmatch(r"\d{6,}", path.stem):
                path.unlink()

    def _found(self, manifest: Mapping[str, Any] | None, report: Report) -> dict[int, Entry]:
        """Images that are recorded, by the manifest or by a shard, and are what they were."""
        earlier = {} if manifest is None else _entries(manifest["images"].values(), manifest["images"])
        candidates: list[dict[int, Entry]] = [earlier, self._recorded(report)]
        found: dict[int, Entry] = {}
        for entries in candidates:
            for index, entry in entries.items():
                if index < self.num and index not in found and entry.fits(self.picture(index)):
                    found[index] = entry
        lost = sorted({*candidates[0], *candidates[1]} - {*found})
        if lost:
            report(
                f"{len(lost)} image(s) of {self.path} are damaged or gone and are drawn again, the first is {lost[0]}"
            )
        return found

    def _recorded(self, report: Report) -> dict[int, Entry]:
        entries: dict[int, Entry] = {}
        for path in sorted((self.path / SHARDS).glob("*.json")):
            if path.name.startswith("."):
                continue
            try:
                content = json.loads(path.read_text())
                entries |= _entries(content.values(), content)
            except (ValueError, TypeError, AttributeError, RecursionError):
                report(f"{path} is damaged; its images are drawn again")
        return entries

    def _has_archive(self, manifest: Mapping[str, Any]) -> bool:
        entries = _entries([manifest.get("archive")], ["0"])
        return self.form != "png" and bool(entries) and entries[0].fits(self.result)

    def _write_manifest(
        self, about: Callable[[int], Mapping[str, Any]] = lambda _: {}, archive: Mapping[str, Any] | None = None
    ) -> None:
        images = {f"{i:06d}.png": asdict(self._done[i]) | dict(about(i)) for i in sorted(self._done)}
        content = {"settings": self.settings, "archive": archive, "images": images}
        with _room(self.path / MANIFEST):
            write_json(self.path / MANIFEST, content)

    def _drop_shards(self) -> None:
        for path in (self.path / SHARDS).glob("*.json"):
            path.unlink()


@contextmanager
def _room(path: Path) -> Iterator[None]:
    """Says what to do when a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror or error}); make room, then run the same command again: "
            f"what is finished is kept"
        ) from error


def _entries(values: Iterable[Any], names: Iterable[str]) -> dict[int, Entry]:
    """Entries by the numbers of their images; those that make no sense are left out."""
    found: dict[int, Entry] = {}
    for name, value in zip(names, values, strict=True):
        number = str(name).removesuffix(".png")
        if isinstance(value, Mapping) and number.isdecimal() and len(number) < 12:
            size, digest = value.get("size"), value.get("sha256")
            if isinstance(size, int) and isinstance(digest, str):
                found[int(number)] = Entry(size, digest)
    return found
