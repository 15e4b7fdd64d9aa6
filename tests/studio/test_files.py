"""Finished runs as files: enough to draw them again, and a moving picture that keeps time."""

import asyncio
import base64
import io
import json
import math
import shlex
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageSequence

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

import httpx

from recap.cli import main
from recap.distributed.drawing import png
from recap.studio.animation import HELD, LONGEST, RATE, animated, scenes
from recap.studio.app import Studio
from recap.studio.files import TYPES
from recap.studio.record import Record
from tests.studio.visits import asked, pngs, studio, told

Models = dict[str, Path]


def finished(place: Studio, path: str, body: Any) -> tuple[list[Any], dict[str, httpx.Response], Record]:
    """A run, its files as they are given out, and its record."""

    async def ask(client: httpx.AsyncClient) -> Any:
        events = told(await client.post(path, json=body))
        run = events[-1]["run"]
        answers = await asyncio.gather(*(client.get(f"/api/runs/{run}/{name}") for name in TYPES))
        assert (await client.get(f"/api/runs/{run}/else")).status_code == 404
        return events, dict(zip(TYPES, answers, strict=True)), place.runs.kept.find(run)

    events, files, record = asked(place, ask)
    for name, answer in files.items():
        assert (answer.status_code, answer.headers["content-type"]) == (200, TYPES[name])
        assert answer.headers["content-disposition"] == f'attachment; filename="recap-{events[-1]["run"]}-{name}"'
    return events, files, record


def upload(side: int) -> dict[str, str]:
    """A picture and a mask whose right half is white, of different formats."""
    pixels = np.random.default_rng(1).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(image := io.BytesIO(), "WEBP", lossless=True)
    white = np.zeros((side, side + 3), np.uint8)
    white[:, side // 2 :] = 255
    files = {"image": image.getvalue(), "mask": png(Image.fromarray(white))}
    return {name: base64.b64encode(file).decode() for name, file in files.items()}


@pytest.mark.parametrize("edit", [False, True])
def test_the_commands_of_a_record_draw_it_again(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: bool
) -> None:
    """Taken home as a zip and unpacked, the commands in it write the files that are there."""
    body: Any = {"labels": [3, 1], "num": 2, "seed": 4, "full": 3, "local": 2, "chain": 2, "guidance": [1.0, 2.5]}
    body |= upload(11) | {"paste": True} if edit else {"drift": True}
    events, files, _ = finished(studio(models), "/api/edit" if edit else "/api/generate", body)
    with zipfile.ZipFile(io.BytesIO(files["images.zip"].content)) as archive:
        archive.extractall(tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    images = {f"{pane}/00000{index}.png" for pane in ("plain", "reused") for index in (0, 1)}
    assert names == images | {"run.json"} | ({"image.webp", "mask.png"} if edit else set())
    record = json.loads((tmp_path / "run.json").read_text())
    assert record == json.loads(files["run.json"].content)
    monkeypatch.chdir(models["maskgit"].parent)
    for pane, line in record["commands"].items():
        taken = [path.read_bytes() for path in sorted((tmp_path / pane).glob("*.png"))]
        assert taken == pngs(events, pane)
        recap, *argv, _, out = shlex.split(line)
        assert (recap, out) == ("recap", pane)
        argv = [str(tmp_path / word) if word in names else word for word in argv]
        assert main([*argv, "--out", str(tmp_path / "again" / pane)]) == 0
        assert [path.read_bytes() for path in sorted((tmp_path / "again" / pane).glob("0*.png"))] == taken
    assert (record["seed"], record["labels"], record["full"], record["local"]) == (4, [3, 1], 3, 2)
    assert record["speedup"] == events[-1]["speedup"]
    assert record["device"] == "cpu"
    for pane, told_of in record["panes"].items():
        assert told_of["seconds"] == events[-1]["seconds"][pane]
        assert [len(clocks) for clocks in told_of["clocks"]] == [5, 5]
        assert (told_of["drift"] is not None) is (not edit and pane == "reused")


def test_labels_that_hold_commas_are_written_as_numbers(models: Models) -> None:
    place = studio({"maskgit": models["maskgit"]})
    names = ("rose", "lily, water", "daisy's", "lily", "aster")
    place.shelf.entries["maskgit"].blank.class_names = names
    _, files, _ = finished(place, "/api/generate", {"labels": ["lily, water", "daisy's"], "num": 2, "full": 2})
    record = json.loads(files["run.json"].content)
    words = shlex.split(record["commands"]["plain"])
    assert words[words.index("--labels") + 1] == "1,daisy's"
    assert record["class_names"] == ["lily, water", "daisy's"]


@pytest.mark.parametrize("num", [1, 3])
def test_a_moving_picture_keeps_the_time_of_the_clocks(models: Models, num: int) -> None:
    _, files, record = finished(studio(models), "/api/generate", {"num": num, "full": 4, "local": 3})
    record.seconds = {"plain": 0.96, "reused": 0.48}
    for event in record.events:  # a steady run, whatever the machine does
        pane = event["pane"]
        step = event["step"] if event["event"] == "frame" else 7
        event["seconds"] = record.seconds[pane] * (7 * event["image"] + step) / (7 * num)
    for form in ("gif", "webp"):
        with Image.open(io.BytesIO(animated(record, form))) as moving:
            durations = []
            for frame in ImageSequence.Iterator(moving):
                frame.load()
                durations.append(frame.info["duration"])
        assert len(durations) == 1 + round(0.96 * RATE)
        assert sum(durations[:-1]) == pytest.approx(960, rel=0.05)
        assert durations[-1] == 1000 * HELD
    frames = list(scenes(record))
    middle = frames[0].width // 2
    changes = [
        [part is not None for part in halves(ImageChops.difference(one, two), middle)]
        for one, two in pairwise(frames[:-1])
    ]
    done = round(0.48 * RATE) + 1
    assert all(plain for plain, _ in changes)
    assert all(reused for _, reused in changes[: done - 2])
    assert not any(reused for _, reused in changes[done:])  # the faster one stands still
    assert files["animation.gif"].content.startswith(b"GIF89a")


def halves(picture: Image.Image, middle: int) -> list[Any]:
    """Where the two halves of a difference are not black."""
    boxes = ((0, 0, middle, picture.height), (middle, 0, picture.width, picture.height))
    return [picture.crop(box).getbbox() for box in boxes]


def test_long_runs_are_shown_faster(models: Models) -> None:
    _, _, record = finished(studio(models), "/api/generate", {"full": 3, "compare": False})
    record.seconds = {"plain": 400.0}
    assert len(list(scenes(record))) == 1 + math.ceil(LONGEST * RATE)
