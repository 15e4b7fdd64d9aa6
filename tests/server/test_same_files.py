"""The images of an answer or a stream are those of the command line, byte for byte."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

from recap import SamplingOptions, weights
from recap.cli import main
from recap.models.adapter import ModelWrapper
from recap.pipelines import Pipeline
from recap.server.worker import Worker
from tests.server.served import asked, by_command, compared, few, pngs, served, text
from tests.tiny import FAMILIES

OPTIONS = "5+3:chain=3,warmup=1,temperature=0.9"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small models, a photo that is no square, and a mask of it."""
    monkeypatch.chdir(tmp_path)
    for family in FAMILIES:
        few(family).save_pretrained(tmp_path / family)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.png")
    mask = np.zeros((12, 20), np.uint8)
    mask[:, 9:] = 255
    Image.fromarray(mask).save("mask.png")
    return tmp_path


def labels(family: str) -> tuple[dict[str, Any], list[str]]:
    """The same labels for the server and for the command line."""
    return ({}, []) if family == "mage" else ({"labels": [3, 1]}, ["--labels", "3,1"])


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_images(place: Path, family: str) -> None:
    """CheckedRequest for at once, one by one, by several clients with others between, and in a comparison."""
    own, argv = labels(family)
    schedule = OPTIONS + ("" if family == "mage" else ",guidance=2")
    body: Any = {"schedule": schedule, "seed": 7, **own}
    argv = ["sample", "--model", family, "--num", "8", "--seed", "7", *argv]
    written = by_command(*argv, "--schedule", schedule)
    plain = by_command(*argv, "--schedule", "8:" + schedule.partition("warmup=1,")[2])

    async def ask(client: httpx.AsyncClient) -> Any:
        together = client.post("/v1/sample", json={**body, "num": 8})
        single = [client.post("/v1/sample", json={**body, "num": 1, "first": index}) for index in (5, 2, 7)]
        fields = client.post(
            "/v1/sample", json=SamplingOptions.from_text(schedule).json() | own | {"seed": 7, "num": 1}
        )
        other = client.post("/v1/sample", json={**own, "seed": 1, "num": 2})
        return await asyncio.gather(together, *single, fields, other)

    together, *single, fields, other = asked(ask, served(family, queue=64))
    assert pngs(together) == written
    assert pngs(fields) == written[:1]
    assert [pngs(answer) for answer in single] == [[written[index]] for index in (5, 2, 7)]
    assert pngs(other) != written[:2]
    said = together.json()
    assert (said["schedule"]["full"], said["schedule"]["local"], said["seed"]) == (5, 3, 7)
    assert [image["index"] for image in said["images"]] == list(range(8))
    events = compared(served(family), **body, num=8)
    assert pngs(events, "reused") == written
    assert pngs(events, "plain") == plain


@pytest.mark.parametrize("family", FAMILIES)
def test_edited_images(place: Path, family: str) -> None:
    """With the model's own evaluations, fewer for fewer tokens, and with given ones."""
    own, argv = labels(family)
    argv = ["edit", "--model", family, "--image", "photo.png", "--fit", "--num", "2", "--seed", "5", *argv]
    body = {"image": text("photo.png"), "fit": True, "num": 2, "seed": 5, **own}
    masked = by_command(*argv, "--mask", "mask.png")
    boxed = by_command(*argv, "--redraw", "1,1,5,4", "--schedule", "2", "--paste")

    async def ask(client: httpx.AsyncClient) -> Any:
        return await asyncio.gather(
            client.post("/v1/edit", json={**body, "mask": text("mask.png")}),
            client.post("/v1/edit", json={**body, "redraw": [1, 1, 5, 4], "full": 2, "paste": True}),
        )

    by_mask, by_box = asked(ask, served(family))
    assert pngs(by_mask) == masked
    assert pngs(by_box) == boxed
    schedule = by_mask.json()["schedule"]
    events = compared(served(family), **body, mask=text("mask.png"))
    assert pngs(events, "reused") == masked
    assert events[0]["schedule"] == schedule
    variants = {variant["variant"]: variant for variant in events[0]["variants"]}
    steps = len(variants["reused"]["kinds"])
    assert steps == schedule["full"] + schedule["local"]
    assert pngs(events, "plain") == by_command(*argv, "--mask", "mask.png", "--schedule", str(steps))
    assert sum(variants["plain"]["tokens"]) == sum(variants["reused"]["tokens"]) == schedule["tokens"] < 16
    frames = [event for event in events if event["event"] == "frame"]
    assert {frame["states"].count("4") for frame in frames} == {16 - schedule["tokens"]}


def test_labels_are_spread_as_recap_sample_does_it(place: Path) -> None:
    events = compared(served("maskgit"), num=4, compare=False)
    assert pngs(events, "reused") == by_command("sample", "--model", "maskgit", "--num", "4")
    assert events[0]["labels"] == [{"label": label, "name": None} for label in (0, 1, 2, 3)]


class Noted(ModelWrapper):
    """Writes down how many images are evaluated at a time."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.batches: set[int] = set()

    def full(self, canvas: Any, *args: Any) -> Any:
        self.batches.add(canvas.batch)
        return super().full(canvas, *args)


@pytest.mark.parametrize("family", ["maskgit", "mar"])
def test_where_images_are_drawn_together_batches_are_filled_up(
    place: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """As on a GPU, where kernels would tell how many there are: always eight, as for the command line."""
    monkeypatch.setattr("recap.runs.draw.ALONE", ())
    both: Any = {"num": 3, "labels": [3, 1], "schedule": "3+2"}
    argv = ["--model", family, "--num", "3", "--labels", "3,1", "--schedule", "3+2"]
    pictures: Any = {"image": text("photo.png"), "mask": text("mask.png"), "fit": True}
    edit = ["edit", "--image", "photo.png", "--mask", "mask.png", "--fit"]
    for body, command in ((both, ["sample"]), (both | pictures, edit)):
        pipe = few(family)
        pipe.model = noted = Noted(pipe.model)
        events = compared(served(pipes={family: pipe}, batch=8), **body)
        assert noted.batches == {8}
        assert pngs(events, "reused") == by_command(*command, *argv)
        frames = [event for event in events if event["event"] == "frame" and event["variant"] == "reused"]
        assert [(frame["step"], frame["image"]) for frame in frames] == [
            (s, i) for s in range(1, 6) for i in range(3)
        ]


def test_the_model_that_comes_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = weights.default() or ""
    events = compared(Worker({name: Pipeline.from_pretrained(name)}), labels=["sunflower"], seed=3, full=3, local=2)
    assert events[0]["labels"] == [{"label": 53, "name": "sunflower"}]
    for variant, schedule in (("reused", "3+2"), ("plain", "5")):
        argv = ["sample", "--labels", "sunflower", "--num", "1", "--seed", "3", "--schedule", schedule]
        assert main([*argv, "--out", variant]) == 0
        assert pngs(events, variant) == [Path(variant, "000000.png").read_bytes()]


def test_options_that_the_model_has_itself_change_nothing() -> None:
    pipe = few("maskgit")
    own = replace(pipe.options, full=None, local=None)
    given = {name: value for name, value in own.json().items() if name != "preset"}
    assert pngs(compared(served(), **given, num=1), "reused") == pngs(compared(served(), num=1), "reused")
