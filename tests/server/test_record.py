"""Finished comparisons as files: enough to draw them again."""

import base64
import io
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

from recap.cli import main
from recap.server.record import encoded
from tests.server.served import compared, few, pngs, served


def upload(side: int) -> dict[str, Any]:
    """A picture and a mask whose right half is white, of different formats."""
    pixels = np.random.default_rng(1).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(image := io.BytesIO(), "WEBP", lossless=True)
    white = np.zeros((side, side + 3), np.uint8)
    white[:, side // 2 :] = 255
    files = {"image": image.getvalue(), "mask": encoded(Image.fromarray(white))}
    return {name: base64.b64encode(file).decode() for name, file in files.items()} | {"fit": True, "paste": True}


@pytest.mark.parametrize("kind", ["sample", "edit", "own"])
def test_the_commands_of_a_record_draw_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Taken home as a zip and unpacked, the commands in it write the files that are there."""
    body: Any = {"labels": [3, 1], "num": 2, "seed": 4}
    if kind != "own":
        body |= {"full": 3, "local": 2, "chain": 2, "guidance": [1.0, 2.5], "preset": "maskgit"}
    body |= {} if kind == "sample" else upload(11)
    events = compared(served("maskgit"), **body)
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(events[-1]["archive"]))) as archive:
        archive.extractall(tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    images = {f"{variant}/00000{index}.png" for variant in ("plain", "reused") for index in (0, 1)}
    assert names == images | {"run.json"} | (set() if kind == "sample" else {"image.webp", "mask.png"})
    record = json.loads((tmp_path / "run.json").read_text())
    few("maskgit").save_pretrained(tmp_path / "maskgit")
    monkeypatch.chdir(tmp_path)
    for variant, line in record["commands"].items():
        taken = [path.read_bytes() for path in sorted(Path(variant).glob("*.png"))]
        assert taken == pngs(events, variant)
        recap, *argv, _, out = shlex.split(line)
        assert (recap, out) == ("recap", variant)
        assert main([*argv, "--out", f"again/{variant}"]) == 0
        assert [path.read_bytes() for path in sorted(Path("again", variant).glob("0*.png"))] == taken
    assert (record["seed"], [label["label"] for label in record["labels"]]) == (4, [3, 1])
    assert {name: record[name] for name in ("commands", "seconds", "speedup")} == {
        name: events[-1][name] for name in ("commands", "seconds", "speedup")
    }
    assert record["device"] == "cpu"


def test_labels_that_hold_commas_are_written_as_numbers() -> None:
    worker = served("maskgit")
    worker.models["maskgit"].class_names = ("rose", "lily, water", "daisy's", "lily", "aster")
    started, *_, done = compared(worker, labels=["lily, water", "daisy's"], num=2, full=2)
    words = shlex.split(done["commands"]["plain"])
    assert words[words.index("--labels") + 1] == "1,daisy's"
    assert [label["name"] for label in started["labels"]] == ["lily, water", "daisy's"]
