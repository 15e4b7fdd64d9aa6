"""Finished comparisons as files: enough to draw them again."""

import base64
import io
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

from recap.cli import main
from recap.server.record import png
from recap.server.worker import Worker
from tests.server.served import asked, compared, few, pngs, served, told


def finished(worker: Worker, body: Any) -> tuple[list[Any], bytes]:
    """The events of a comparison, and its archive."""

    async def ask(client: httpx.AsyncClient) -> Any:
        events = told(await client.post("/api/compare", json=body))
        run = events[-1]["run"]
        answer = await client.get(f"/api/runs/{run}.zip")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/zip")
        assert answer.headers["content-disposition"] == f'attachment; filename="recap-{run}.zip"'
        return events, answer.content

    return asked(ask, worker)


def upload(side: int) -> dict[str, Any]:
    """A picture and a mask whose right half is white, of different formats."""
    pixels = np.random.default_rng(1).integers(0, 256, (side, side + 3, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(image := io.BytesIO(), "WEBP", lossless=True)
    white = np.zeros((side, side + 3), np.uint8)
    white[:, side // 2 :] = 255
    files = {"image": image.getvalue(), "mask": png(Image.fromarray(white))}
    return {name: base64.b64encode(file).decode() for name, file in files.items()} | {"fit": True, "paste": True}


@pytest.mark.parametrize("kind", ["sample", "edit", "own"])
def test_the_commands_of_a_record_draw_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Taken home as a zip and unpacked, the commands in it write the files that are there."""
    body: Any = {"labels": [3, 1], "num": 2, "seed": 4}
    if kind != "own":
        body |= {"full": 3, "local": 2, "chain": 2, "guidance": [1.0, 2.5], "preset": "maskgit"}
    body |= {"drift": True} if kind == "sample" else upload(11)
    events, content = finished(served("maskgit"), body)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    images = {f"{variant}/00000{index}.png" for variant in ("plain", "reused") for index in (0, 1)}
    assert names == images | {"run.json"} | (set() if kind == "sample" else {"image.webp", "mask.png"})
    record = json.loads((tmp_path / "run.json").read_text())
    assert record == events[-1]["record"]
    few("maskgit").save_pretrained(tmp_path / "maskgit")
    monkeypatch.chdir(tmp_path)
    for variant, line in record["commands"].items():
        taken = [path.read_bytes() for path in sorted(Path(variant).glob("*.png"))]
        assert taken == pngs(events, variant)
        recap, *argv, _, out = shlex.split(line)
        assert (recap, out) == ("recap", variant)
        assert main([*argv, "--out", f"again/{variant}"]) == 0
        assert [path.read_bytes() for path in sorted(Path("again", variant).glob("0*.png"))] == taken
    assert (record["seed"], record["labels"]) == (4, [3, 1])
    assert record["schedule"]["shrunk_from"] == ("6+4" if kind == "own" else None)
    assert record["speedup"] == events[-1]["speedup"]
    assert record["device"] == "cpu"
    assert record["seconds"] == events[-1]["seconds"]
    assert {name: len(about["kinds"]) for name, about in record["variants"].items()} == dict.fromkeys(
        ("plain", "reused"), record["schedule"]["full"] + record["schedule"]["local"]
    )


def test_labels_that_hold_commas_are_written_as_numbers() -> None:
    worker = served("maskgit")
    worker.models["maskgit"].class_names = ("rose", "lily, water", "daisy's", "lily", "aster")
    record = compared(worker, labels=["lily, water", "daisy's"], num=2, full=2)[-1]["record"]
    words = shlex.split(record["commands"]["plain"])
    assert words[words.index("--labels") + 1] == "1,daisy's"
    assert record["class_names"] == ["lily, water", "daisy's"]


def test_the_latest_runs_are_kept_within_bytes() -> None:
    body = {"full": 2, "local": 1}
    size = len(finished(served("maskgit"), body)[1])

    async def ask(client: httpx.AsyncClient) -> Any:
        runs = [told(await client.post("/api/compare", json=body))[-1]["run"] for _ in range(3)]
        return [(await client.get(f"/api/runs/{run}.zip")).status_code for run in [*runs, "none"]]

    assert asked(ask, served("maskgit", max_kept=5 * size // 2)) == [404, 200, 200, 404]
