"""What a small run shows: a sheet of its images, and plain decoding beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from recap.core.schedule import Schedule
from recap.distributed.drawing import Audience, draw, failure, fitting_for
from recap.distributed.folder import ImageFolder
from recap.distributed.sampling import Job
from recap.files import written_whole
from recap.pictures import MOST, Row, comparison
from recap.pipeline import Pipeline
from recap.timing import timed

SHEET = 64  # images that a sheet shows; larger runs have none, so that a folder holds what it was asked for


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a run gave: the images, where the time went, and how many evaluations were run."""

    images: list[Image.Image]
    seconds: dict[str, float]
    evaluations: dict[str, int]


def shown_images(folder: ImageFolder) -> list[Image.Image]:
    """The pictures for a sheet, where there are few enough and they lie in the folder."""
    if folder.form != "png" or folder.num > SHEET:
        return []
    pictures = []
    for index in range(folder.num):
        with Image.open(folder.picture(index)) as picture:
            pictures.append(picture.convert("RGB"))
    return pictures


def draw_plain(pipe: Pipeline, job: Job, audience: Audience | None = None) -> Drawn:
    """The images of a job by plain decoding, of which only those are kept that are shown."""
    pipe, watch = timed(pipe)
    pipe.progress = False
    images: list[Image.Image] = []
    fitting = fitting_for(pipe, job.batch)
    for first in range(0, job.num, job.batch):
        numbers = range(first, min(first + job.batch, job.num))
        drawn = draw(pipe, job.asked, job.schedule, job.seed, numbers, fitting, watch, audience=audience)
        if drawn.failed:
            raise failure(drawn.failed, job.seed, "nothing can be compared")
        images = [*images, *drawn.pictures()][:MOST]
    return Drawn(images, watch.seconds, {phase: watch.calls[phase] for phase in ("full", "local")})


def compare(
    out: Path, schedule: Schedule, names: Sequence[str] | None, plain: Drawn, result: Drawn
) -> dict[str, Any]:
    """Plain decoding and reuse side by side: a picture, a line, and what is to be recorded."""
    steps, seconds, shown = len(schedule.steps), result.seconds["total"], len(plain.images)
    faster = plain.seconds["total"] / seconds
    rows = [
        Row(plain.images, f"plain {steps} steps", f"{plain.seconds['total']:.1f} s"),
        Row(result.images[:shown], f"reused {schedule}", f"{seconds:.1f} s   {gain(faster)}"),
    ]
    save(comparison(rows, None if names is None else names[:shown]), out / "compare.png")
    print(
        f"plain decoding in as many steps took {plain.seconds['total']:.2f} s: reuse is {gain(faster)} "
        f"-> {out / 'compare.png'}"
    )
    return {"full": steps, "seconds": plain.seconds, "evaluations": plain.evaluations, "speedup": faster}


def gain(faster: float) -> str:
    return f"{faster:.2f}x faster" if faster >= 1 else f"{1 / faster:.2f}x slower"


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture, whole or not at all."""
    with written_whole(path) as file:
        picture.save(file, "PNG")
