"""Images as files: in answers, and of finished comparisons, as they can be taken home."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from PIL import Image

from recap.core.noise import image_seed
from recap.core.options import SamplingOptions
from recap.runs.record import versions

if TYPE_CHECKING:
    from recap.server.compare import Comparison, Variant

EPOCH = (1980, 1, 1, 0, 0, 0)  # equal images make equal archives
TYPES = {"run.json": "application/json", "images.zip": "application/zip"}


@dataclass(frozen=True, slots=True)
class Upload:
    """What came with a request to edit: the files, or the box of what is drawn anew."""

    image: bytes
    mask: bytes | None
    redraw: list[int] | None
    fit: bool
    paste: bool

    def files(self) -> dict[str, bytes]:
        """The pictures by the names that the command line is given."""
        found = {"image": self.image} | ({} if self.mask is None else {"mask": self.mask})
        return {_named(stem, file): file for stem, file in found.items()}

    def words(self) -> list[str]:
        """How the command line is told of it."""
        names = list(self.files())
        what = ["--mask", names[1]] if self.redraw is None else ["--redraw", ",".join(map(str, self.redraw))]
        flags = [f"--{name}" for name in ("fit", "paste") if getattr(self, name)]
        return ["--image", names[0], *what, *flags]


@dataclass(slots=True)
class Record:
    """A comparison that was drawn: what was asked for, its images by variant as PNGs, and what they took."""

    request: Comparison
    device: str
    dtype: str
    engine: str
    images: dict[str, list[bytes]]
    seconds: dict[str, float]
    difference: list[float] | None = None

    @property
    def speedup(self) -> float | None:
        plain, reused = self.seconds.get("plain"), self.seconds.get("reused")
        return None if plain is None or reused is None else plain / reused

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        upload = [] if self.request.upload is None else self.request.upload.files().values()
        return sum(len(file) for files in (*self.images.values(), upload) for file in files)

    def summary(self) -> dict[str, Any]:
        """What the last event says."""
        what = {"run": self.request.id, "seconds": self.seconds, "speedup": self.speedup}
        return what | {"difference": self.difference}

    def file(self, name: str) -> bytes:
        """One of `TYPES`."""
        return json.dumps(_about(self), indent=2).encode() + b"\n" if name == "run.json" else _zipped(self)


class Kept:
    """The latest finished comparisons, as many as fit into so many bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: OrderedDict[str, Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Keep one more, and forget the oldest until the rest fits."""
        self._records[record.request.id] = record
        size = sum(record.size for record in self._records.values())
        while size > self._most:
            _, oldest = self._records.popitem(last=False)
            size -= oldest.size

    def find(self, run: str) -> Record | None:
        return self._records.get(run)


def png(image: Image.Image) -> bytes:
    """The bytes that the command line writes."""
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A zip file; PNGs are as small as they get already."""
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), file)
    return whole.getvalue()


def _about(record: Record) -> dict[str, Any]:
    """Everything needed to draw the same again, and what it took."""
    request, works = record.request, record.request.asked.works
    names = [None if label is None else label["name"] for label in request.labels]
    seed = works[0].seed or 0
    return record.summary() | {
        "commands": {variant.name: shlex.join(_command(record, variant)) for variant in request.variants},
        "model": request.entry.name,
        "labels": None if works[0].label is None else [work.label for work in works],
        "class_names": names if all(names) else None,
        "seed": seed,
        "seeds": [image_seed(seed, work.index) for work in works],
        "schedule": request.asked.evaluations,
        "edit": None if request.upload is None else {"fit": request.upload.fit, "paste": request.upload.paste},
        "variants": {variant.name: variant.about() for variant in request.variants},
        "device": record.device,
        "dtype": record.dtype,
        "engine": record.engine,
        "versions": versions(),
    }


def _command(record: Record, variant: Variant) -> list[str]:
    """The command line that draws the images of a variant, file by file."""
    request, works = record.request, record.request.asked.works
    words = ["recap", "sample" if request.upload is None else "edit", "--model", request.entry.name]
    words += [] if request.upload is None else request.upload.words()
    if request.labelled and works[0].label is not None:
        names = request.entry.blank.class_names
        words += ["--labels", ",".join(_class(work.label or 0, names) for work in works)]
    words += ["--num", str(len(works)), "--seed", str(works[0].seed)]
    options = request.asked.options if variant.name != "plain" else request.asked.options.plain()
    words += ["--schedule", _differing(options, request.entry.blank.options).text]
    for option, value, usual in (
        ("--device", record.device, "cpu"),
        ("--dtype", record.dtype, "float32"),
        ("--engine", record.engine, "eager"),
    ):
        words += [] if value == usual else [option, value]
    return [*words, "--out", variant.name]


def _differing(options: SamplingOptions, own: SamplingOptions) -> SamplingOptions:
    """The options without what is a model's own anyway."""
    if options.preset != own.preset:
        return options
    alike = ("preset", "guidance", "temperature", "choice_temperature", "head_steps", "solver", "order")
    return replace(options, **{name: None for name in alike if getattr(options, name) == getattr(own, name)})


def _class(label: int, names: tuple[str, ...] | None) -> str:
    """A class as the command line takes it among others: its name, or its number where the name has a comma."""
    return str(label) if names is None or "," in names[label] else names[label]


def _named(stem: str, file: bytes) -> str:
    """A name for a picture that was sent."""
    with Image.open(io.BytesIO(file)) as picture:
        return f"{stem}.{(picture.format or 'png').lower()}"


def _zipped(record: Record) -> bytes:
    """The images by variant, `run.json`, and of an edit the files that its commands read."""
    upload = record.request.upload
    files = {"run.json": record.file("run.json")} | ({} if upload is None else upload.files())
    for name, pictures in record.images.items():
        files |= {f"{name}/{place:06d}.png": picture for place, picture in enumerate(pictures)}
    return archive(files)
