"""Images and texts as files, and what it takes to draw them again."""

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


def command(asked: CheckedRequest, variant: str) -> str | None:
    """The command line that draws the images or texts of a variant, file by file, where there is one."""
    request, prompts = asked.request, list[str]()
    if isinstance(request, schema.Write):
        if not expressible(request):
            return None
        prompts = [prompt for prompt in request.prompts if prompt is not None]
        words = ["recap", "write", "--model", asked.model, *written(request)]
    else:
        words = ["recap", "edit" if asked.files else "sample", "--model", asked.model, *drawn(asked, request)]
    model = schema.Model.of(asked.model, asked.pipe)
    options = asked.options.plain(asked.works[0].schedule.tokens) if variant == "plain" else asked.options
    words += ["--seed", str(request.seed), "--schedule", options.text]
    for option, value, usual in (
        ("--device", model.device, "cpu"),
        ("--dtype", model.dtype, "float32"),
        ("--engine", model.engine, default_engine(model.device)),
    ):
        words += [] if value == usual else [option, value]
    words += ["--out", variant]
    if any(prompt.startswith("-") for prompt in prompts):
        return shlex.join([*words, "--", *prompts])
    return shlex.join([*words[:2], *prompts, *words[2:]])


def drawn(asked: CheckedRequest, request: schema.DrawRequest) -> list[str]:
    """Which images, in the words of the command line."""
    words: list[str] = []
    if isinstance(request, schema.Redraw) and asked.files:
        image, *mask = asked.files
        words += ["--image", image]
        words += ["--mask", *mask] if mask else ["--redraw", ",".join(map(str, request.redraw or ()))]
        words += [f"--{name}" for name in ("fit", "paste") if getattr(request, name)]
    if request.labels is not None:
        names = [asked.name_of(work) or "," for work in asked.works]
        labels = [str(work.label) if "," in name else name for work, name in zip(asked.works, names, strict=True)]
        words += ["--labels", ",".join(labels)]
    return [*words, "--num", str(len(asked.works))]


def expressible(request: schema.Write) -> bool:
    """Whether a command line can say what to write: not ids or chats with a past, and - means something else."""
    alone = all(len(chat) == 1 and chat[0].role == "user" for chat in request.chats)
    return alone and request.input_ids is None and request.first == 0 and "-" not in request.prompts


def written(request: schema.Write) -> list[str]:
    """Which texts, in the words of the command line."""
    words = ["--num", str(request.num)]
    if request.gen_length is not None:
        words += ["--length", str(request.gen_length)]
    words += ["--chat"] if request.messages is not None else []
    return words if request.eos_early_stop else [*words, "--past-end"]
