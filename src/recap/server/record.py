"""Images as files, and what it takes to draw them again."""

from __future__ import annotations

import base64
import io
import shlex
import zipfile
from collections.abc import Mapping
from typing import Any

from PIL import Image

from recap.engine import default_engine
from recap.server import schema
from recap.server.requests import CheckedRequest

EPOCH = (1980, 1, 1, 0, 0, 0)  # equal images make equal archives


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """A picture as a file; a PNG has the bytes that the command line writes."""
    image.save(file := io.BytesIO(), kind, **options)
    return file.getvalue()


def as_text(file: bytes) -> str:
    return base64.b64encode(file).decode()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A zip file; PNGs are as small as they get already."""
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), file)
    return whole.getvalue()


def command(asked: CheckedRequest, variant: str) -> str:
    """The command line that draws the images of a variant, file by file."""
    request, words = asked.request, ["recap", "edit" if asked.files else "sample", "--model", asked.model]
    model = schema.Model.of(asked.model, asked.pipe)
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
        ("--engine", model.engine, default_engine(model.device)),
    ):
        words += [] if value == usual else [option, value]
    return shlex.join([*words, "--out", variant])
