"""The forms of an answer: one PNG, a zip of several, or JSON."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Sequence
from typing import Any

from PIL import Image

from recap.core.schedule import Schedule
from recap.serving.limits import Refused
from recap.serving.work import Work

TYPES = {"json": "application/json", "png": "image/png", "zip": "application/zip"}
EPOCH = (1980, 1, 1, 0, 0, 0)  # equal images make equal archives


def form_of(field: str | None, accept: str | None, num: int) -> str:
    """The form that the field `format` names, or the one that the header likes best; JSON if it does not care."""
    form = field or _liked(accept)
    if form == "png" and num > 1:
        raise Refused(
            422, "format", f'{num} images were asked for as one PNG; ask for "json" or "zip", or for one image'
        )
    return form


def _liked(accept: str | None) -> str:
    if accept is None or not accept.strip():
        return "json"
    weights: dict[str, float] = {}
    for part in accept.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        weights[kind] = _weight(parameters)
    liked = {form: _weight_of(kind, weights) for form, kind in TYPES.items()}
    best = max(liked, key=lambda form: liked[form])  # the first of equals: JSON
    if liked[best] <= 0:
        known = ", ".join(TYPES.values())
        raise Refused(406, "format", f"Accept is {accept[:200]!r}; this server gives {known}")
    return best


def _weight(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _weight_of(kind: str, weights: dict[str, float]) -> float:
    for wanted in (kind, kind.partition("/")[0] + "/*", "*/*"):
        if wanted in weights:
            return weights[wanted]
    return 0.0


def packed(
    form: str, model: str, schedule: Schedule, works: Sequence[Work], images: Sequence[Image.Image], names: Any
) -> bytes:
    """The body of an answer; the PNGs are the bytes that the command line writes."""
    files = [png(image) for image in images]
    if form == "png":
        return files[0]
    if form == "zip":
        with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
            for work, file in zip(works, files, strict=True):
                archive.writestr(zipfile.ZipInfo(f"{work.index:06d}.png", EPOCH), file)
        return whole.getvalue()
    content = {
        "model": model,
        "seed": works[0].seed,
        "schedule": numbers(schedule),
        "images": [
            {
                "index": work.index,
                "label": work.label,
                "name": None if names is None or work.label is None else names[work.label],
                "png": base64.b64encode(file).decode(),
            }
            for work, file in zip(works, files, strict=True)
        ],
    }
    return json.dumps(content).encode()


def png(image: Image.Image) -> bytes:
    image.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def numbers(schedule: Schedule) -> dict[str, Any]:
    return {
        "full": schedule.full,
        "local": schedule.local,
        "plain": schedule.plain,
        "guided": schedule.guided,
    }
