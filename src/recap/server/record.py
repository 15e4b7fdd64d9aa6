"""Images as files, and what it takes to draw them again."""

from __future__ import annotations

import io
import shlex
import zipfile
from collections.abc import Mapping
from typing import Any

from PIL import Image

from recap.core.noise import image_seed
from recap.runs.record import versions
from recap.server import schema
from recap.server.requests import Asked

EPOCH = (1980, 1, 1, 0, 0, 0)  # equal images make equal archives


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


def about(asked: Asked, variants: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The content of `run.json`: how the images of the variants were drawn."""
    names = [asked.name_of(work) for work in asked.works]
    model = schema.Model.of(asked.model, asked.pipe)
    return {
        "commands": {name: shlex.join(command(asked, model, name)) for name in variants},
        "model": asked.model,
        "labels": None if asked.works[0].label is None else [work.label for work in asked.works],
        "class_names": names if all(names) else None,
        "seed": asked.request.seed,
        "seeds": [image_seed(asked.request.seed, work.index) for work in asked.works],
        "schedule": asked.evaluations.model_dump(),
        "variants": variants,
        "device": model.device,
        "dtype": model.dtype,
        "engine": model.engine,
        "versions": versions(),
    }


def command(asked: Asked, model: schema.Model, variant: str) -> list[str]:
    """The command line that draws the images of a variant, file by file."""
    request, words = asked.request, ["recap", "edit" if asked.files else "sample", "--model", asked.model]
    if isinstance(request, schema.Redraw) and asked.files:
        image, *mask = asked.files
        words += ["--image", image]
        words += ["--mask", *mask] if mask else ["--redraw", ",".join(map(str, request.redraw or ()))]
        words += [f"--{name}" for name in ("fit", "paste") if getattr(request, name)]
    if request.labels is not None:
        names = [asked.name_of(work) or "," for work in asked.works]
        labels = [str(work.label) if "," in name else name for work, name in zip(asked.works, names, strict=True)]
        words += ["--labels", ",".join(labels)]
    options = asked.options.plain() if variant == "plain" else asked.options
    words += ["--num", str(len(asked.works)), "--seed", str(request.seed), "--schedule", options.text]
    for option, value, usual in (
        ("--device", model.device, "cpu"),
        ("--dtype", model.dtype, "float32"),
        ("--engine", model.engine, "eager"),
    ):
        words += [] if value == usual else [option, value]
    return [*words, "--out", variant]
