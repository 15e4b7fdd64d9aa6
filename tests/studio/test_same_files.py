"""The images of a stream are those of the command line, byte for byte."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

import recap
from recap.cli import main
from tests.studio.visits import drawn, pngs, studio
from tests.test_pipeline import FAMILIES

Models = dict[str, Path]


def by_command(*argv: str) -> list[bytes]:
    assert main([*argv, "--out", "out"]) == 0
    written = [path.read_bytes() for path in sorted(Path("out").glob("0*.png"))]
    for path in Path("out").glob("*"):
        path.unlink()
    return written


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a photo that is no square, and a mask of it."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.png")
    mask = np.zeros((12, 20), np.uint8)
    mask[:, 9:] = 255
    Image.fromarray(mask).save("mask.png")
    return tmp_path


def text(path: str) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_files_as_recap_sample(models: Models, place: Path, family: str) -> None:
    """Both panes, with chains, guidance and several labels; looking at drift changes nothing."""
    body: Any = {"model": family, "num": 2, "seed": 7, "full": 5, "local": 4, "chain": 2, "drift": True}
    argv = ["sample", "--model", str(models[family]), "--num", "2", "--seed", "7"]
    if family != "mage":
        body |= {"labels": [3, 1], "guidance": 2.0}
        argv += ["--labels", "3,1", "--guidance", "2"]
    events = drawn(studio(models), **body)
    assert pngs(events, "reused") == by_command(*argv, "--full", "5", "--local", "4", "--chain", "2")
    assert pngs(events, "plain") == by_command(*argv, "--full", "9")


def test_labels_are_spread_as_recap_sample_does_it(models: Models, place: Path) -> None:
    events = drawn(studio(models), num=4, compare=False)
    assert pngs(events, "reused") == by_command("sample", "--model", str(models["maskgit"]), "--num", "4")
    assert events[0]["labels"] == [{"label": label, "name": None} for label in (0, 1, 2, 3)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("own", [True, False])
def test_the_same_files_as_recap_edit(models: Models, place: Path, family: str, own: bool) -> None:
    """With the model's own evaluations, fewer for fewer tokens, and with given ones."""
    argv = ["edit", "--model", str(models[family]), "--image", "photo.png", "--mask", "mask.png", "--fit"]
    argv += ["--num", "2", "--seed", "5"] + ([] if own else ["--paste"])
    body: Any = {"model": family, "image": text("photo.png"), "mask": text("mask.png"), "num": 2, "seed": 5}
    if family != "mage":
        body |= {"labels": [3, 1]}
        argv += ["--labels", "3,1"]
    steps = [] if own else ["--full", "3", "--local", "2"]
    more: Any = {} if own else {"full": 3, "local": 2, "paste": True, "drift": True}
    events = drawn(studio(models), "/api/edit", **body, **more)
    assert pngs(events, "reused") == by_command(*argv, *steps)
    panes = {pane["pane"]: pane for pane in events[0]["panes"]}
    assert pngs(events, "plain") == by_command(*argv, "--full", str(len(panes["reused"]["kinds"])))
    assert sum(panes["plain"]["tokens"]) == sum(panes["reused"]["tokens"]) < 16
    frames = [event for event in events if event["event"] == "frame"]
    assert {frame["cells"].count("4") for frame in frames} == {16 - sum(panes["plain"]["tokens"])}


@pytest.mark.parametrize("family", ["maskgit", "mar"])
def test_where_images_are_drawn_together_the_same_are(
    models: Models, place: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """As on a GPU: `recap sample` fills its batches up, `recap edit` does not, and kernels would tell."""
    for module in ("recap.studio.race", "recap.distributed.drawing", "recap.distributed.sampling"):
        monkeypatch.setattr(f"{module}.alone", lambda _: False)
    batches = []

    def load(folder: Path) -> Any:
        pipe = recap.load(folder)
        full = pipe.model.full

        def noted(canvas: Any, *args: Any) -> Any:
            batches.append(canvas.batch)
            return full(canvas, *args)

        pipe.model = pipe.model.replace(full=noted)
        return pipe

    both: Any = {"model": family, "num": 3, "labels": [3, 1], "full": 3, "local": 2}
    steps = ["--model", str(models[family]), "--num", "3", "--labels", "3,1", "--full", "3", "--local", "2"]
    events = drawn(studio(models, load), **both, drift=True)
    assert set(batches) == {8}
    assert pngs(events, "reused") == by_command("sample", *steps)
    frames = [event for event in events if event["event"] == "frame" and event["pane"] == "reused"]
    assert [(frame["step"], frame["image"]) for frame in frames] == [(s, i) for s in range(1, 6) for i in range(3)]
    batches.clear()
    events = drawn(studio(models, load), "/api/edit", **both, image=text("photo.png"), mask=text("mask.png"))
    assert set(batches) == {3}
    edit = ["edit", "--image", "photo.png", "--mask", "mask.png", "--fit", *steps]
    assert pngs(events, "reused") == by_command(*edit)
