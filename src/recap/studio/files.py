"""The files that a finished run can be taken home as."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from typing import Any

from PIL import Image

from recap.core.noise import image_seed
from recap.serving.answers import EPOCH
from recap.studio.animation import animated
from recap.studio.jobs import Lane
from recap.studio.record import Record
from recap.versions import versions

TYPES = {
    "run.json": "application/json",
    "images.zip": "application/zip",
    "animation.gif": "image/gif",
    "animation.webp": "image/webp",
}


def made(record: Record, name: str) -> bytes:
    """A file of a record by its name."""
    if name == "run.json":
        return json.dumps(about(record), indent=2).encode() + b"\n"
    return zipped(record) if name == "images.zip" else animated(record, name.rpartition(".")[2])


def about(record: Record) -> dict[str, Any]:
    """Everything needed to draw the same again, and what it took."""
    job, asked = record.job, record.job.asked
    pipe, lane = job.entry.blank, job.lanes[-1]
    schedule, labelled = lane.schedule, job.labels[0] is not None
    steps = schedule.steps
    known = pipe.class_names if labelled else None
    return {
        "run": record.id,
        "commands": {lane.name: shlex.join(command(record, lane)) for lane in job.lanes},
        "model": job.entry.name,
        "labels": list(job.labels) if labelled else None,
        "class_names": None if known is None else [known[label] for label in job.labels if label is not None],
        "seed": asked.seed,
        "seeds": [image_seed(asked.seed, index) for index in range(len(job.labels))],
        "sampling": pipe.sampling.as_dict(),
        "full": schedule.full,
        "local": schedule.local,
        "chain": asked.chain,
        "plain": schedule.plain,
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].token_temperature, steps[-1].token_temperature],
        "edit": None if job.upload is None else {"paste": job.upload.paste, "redrawn": schedule.tokens},
        "panes": {
            lane.name: {
                "evaluations": str(lane.schedule),
                "kinds": lane.kinds,
                "tokens": list(lane.schedule.sizes),
                "seconds": record.seconds[lane.name],
                "clocks": [[event["seconds"] for event in frames] for frames in by_image(record, lane)],
                "drift": [[event["drift"] for event in frames] for frames in by_image(record, lane)]
                if asked.drift and lane.schedule.local
                else None,
            }
            for lane in job.lanes
        },
        "speedup": record.speedup,
        "difference": record.difference,
        "device": record.device,
        "dtype": record.dtype,
        "engine": record.engine,
        "versions": versions(),
    }


def by_image(record: Record, lane: Lane) -> list[list[dict[str, Any]]]:
    """The frames of a lane, those of each image together."""
    frames = record.of("frame", lane.name)
    return [[event for event in frames if event["image"] == index] for index in range(len(lane.works))]


def command(record: Record, lane: Lane) -> list[str]:
    """The command line that draws the images of a lane, file by file."""
    job, asked, upload = record.job, record.job.asked, record.job.upload
    words = ["recap", "sample" if upload is None else "edit", "--model", job.entry.name]
    if upload is not None:
        words += ["--image", named("image", upload.image), "--mask", named("mask", upload.mask), "--fit"]
        words += ["--paste"] if upload.paste else []
    if asked.labels is not None:
        names = job.entry.blank.class_names
        words += ["--labels", ",".join(shown(label, names) for label in job.labels if label is not None)]
    words += ["--num", str(len(job.labels)), "--seed", str(asked.seed), "--full", str(lane.schedule.full)]
    if lane.schedule.local:
        words += ["--local", str(lane.schedule.local), "--chain", str(asked.chain)]
    if asked.guidance is not None:
        scale = asked.guidance
        words += ["--guidance", ",".join(f"{value:g}" for value in (scale if isinstance(scale, list) else [scale]))]
    for option, value, usual in (
        ("--device", record.device, "cpu"),
        ("--dtype", record.dtype, "float32"),
        ("--engine", record.engine, "eager"),
    ):
        words += [] if value == usual else [option, value]
    return [*words, "--out", lane.name]


def shown(label: int, names: tuple[str, ...] | None) -> str:
    """A class as the command line takes it among others: its name, or its number where the name has a comma."""
    return str(label) if names is None or "," in names[label] else names[label]


def named(stem: str, file: bytes) -> str:
    """A name for a picture that was sent."""
    with Image.open(io.BytesIO(file)) as picture:
        return f"{stem}.{(picture.format or 'png').lower()}"


def zipped(record: Record) -> bytes:
    """The images by pane, `run.json`, and of an edit the files that its commands read."""
    upload = record.job.upload
    files = {"run.json": made(record, "run.json")}
    if upload is not None:
        files |= {named(stem, file): file for stem, file in (("image", upload.image), ("mask", upload.mask))}
    for lane in record.job.lanes:
        for event in record.of("image", lane.name):
            files[f"{lane.name}/{event['image']:06d}.png"] = event["picture"]
    with zipfile.ZipFile(whole := io.BytesIO(), "w") as archive:
        for name, file in files.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), file)
    return whole.getvalue()
