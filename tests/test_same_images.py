"""An image of a seed is the same picture in every version, by whatever way it is asked for, in any batch.

The digests were made when randomness came to belong to positions. Sums are rounded as the processor's instructions
have it, so the processes that are compared with them are held to instructions that all processors have.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from recap.cli import main
from recap.pipelines import Output, Pipeline, load
from recap.view.images import box_mask
from tests.pipelines.test_pipeline import pipeline
from tests.tiny import FAMILIES

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

DIGESTS_BY = "2.13"  # another torch may round in another way
DIGESTS = {
    "flowers-maskgit": ("51c699c3da028711", "9108ee4ebf9d1044", "64f890c974f7e39e"),
    "flowers-mage": ("7e82f5058288b53e", "6b58b3e5d51920a7", "ccf9ed4430382831"),
    "flowers-mar": ("5a20282f20b11831", "a129275b706fdf01", "884c4c5579524023"),
}
ALIKE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}
# sampled with reuse, without it, and a part of the latter edited: seed, schedule, box
RUNS: dict[str, tuple[int, str, list[int] | None]] = {
    "grouped": (5, "3+2", None),
    "plain": (5, "4", None),
    "edited": (6, "2+1", [32, 32, 96, 128]),
}
WAYS = ("command", "call", "server", "studio")
BATCHES = (1, 3, 8)
SCHEDULE = "5+3:chain=3,warmup=1"


def digest(path: Path) -> str:
    """What is in a picture, however it was packed."""
    return hashlib.sha256(np.asarray(Image.open(path)).tobytes()).hexdigest()[:16]


def by_command(*argv: str) -> list[bytes]:
    """The pictures that a command writes."""
    assert main([*argv, "--out", "out", "--overwrite"]) == 0
    return [path.read_bytes() for path in sorted(Path("out").glob("[0-9]*.png"))]


def by_call(output: Output) -> list[bytes]:
    """The images of a call, as the command writes them."""
    for index, image in enumerate(output.images):
        image.save(f"{index}.png")
    return [Path(f"{index}.png").read_bytes() for index in range(len(output.images))]


def by_server(pipe: Pipeline, body: dict[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """The images of an answer, and those of the studio's stream."""
    from tests.server.served import asked, pngs, served, told

    async def ask(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        answer = await client.post("/v1/edit" if "image" in body else "/v1/sample", json=body)
        return answer, await client.post("/api/compare", json={**body, "compare": False})

    answer, stream = asked(ask, served(pipes={"model": pipe}, batch=max(BATCHES)))
    events = told(stream)
    (variant,) = next(event["variants"] for event in events if event["event"] == "started")
    return pngs(answer), pngs(events, variant["variant"])


def every_way(model: str) -> None:
    """Write the picture of every run, by every way."""
    from tests.server.served import text

    pipe, label = load(model), None if model == "flowers-mage" else "sunflower"
    labels = None if label is None else pipe.label(label)
    own = ["--model", model, "--num", "1", *(["--labels", label] if label else [])]
    for name, (seed, schedule, box) in RUNS.items():
        argv, body = (
            [*own, "--seed", str(seed), "--schedule", schedule],
            {"seed": seed, "schedule": schedule, "num": 1},
        )
        body |= {"labels": [label]} if label else {}
        if box is None:
            called = pipe(labels, num_images=1, schedule=schedule, seed=seed)
        else:
            before = "plain-command.png"
            argv += ["--image", before, "--redraw", ",".join(map(str, box))]
            body |= {"image": text(before), "redraw": box}
            called = pipe.edit(Image.open(before), box_mask(pipe.side, *box), labels, schedule=schedule, seed=seed)
        found = [by_command("sample" if box is None else "edit", *argv), by_call(called)]
        if name != "plain":  # which takes longest, and the studio draws beside others
            found += by_server(pipe, body)
        for way, (picture,) in zip(WAYS, found, strict=False):
            Path(f"{name}-{way}.png").write_bytes(picture)


@pytest.mark.skipif(
    not torch.__version__.startswith(DIGESTS_BY), reason=f"the digests are those of torch {DIGESTS_BY}"
)
@pytest.mark.parametrize("model", DIGESTS)
def test_pictures_are_those_of_the_version_before(model: str, tmp_path: Path) -> None:
    code = "import sys; from tests.test_same_images import every_way; every_way(sys.argv[1])"
    environment = os.environ | ALIKE | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [sys.executable, "-c", code, model]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = dict(zip(RUNS, DIGESTS[model], strict=True))
    for name, way in product(RUNS, WAYS):
        if name != "plain" or way in ("command", "call"):
            assert digest(tmp_path / f"{name}-{way}.png") == expected[name], (name, way)


@pytest.fixture(params=["stand-in", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where images are drawn together: a GPU, and what is done there on the CPU."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        return "cuda"
    monkeypatch.setattr("recap.runs.draw.ALONE", ())
    return "cpu"


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_of_any_size_and_all_ways_of_asking_give_the_same_images(
    family: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.server.served import text

    monkeypatch.chdir(tmp_path)
    schedule = SCHEDULE + (",head_steps=4/3" if family == "mar" else "")
    pipe = pipeline(family)
    pipe.options = pipe.options_for("6+4")
    pipe = load(pipe.save_pretrained("model"), device=device)
    photo = np.random.default_rng(0).integers(0, 256, (pipe.side, pipe.side, 3), dtype=np.uint8)
    mask = np.zeros((pipe.side, pipe.side), dtype=np.uint8)
    mask[:, pipe.side // 2 :] = 255
    pictures = Image.fromarray(photo), Image.fromarray(mask)
    for name, picture in zip(("photo.png", "mask.png"), pictures, strict=True):
        picture.save(name)
    label = 2 if pipe.model.classes else None
    common = ["--model", "model", "--device", device, "--seed", "7", *(["--labels", "2"] if label else [])]
    files = ["--image", "photo.png", "--mask", "mask.png"]
    sent = {"image": text("photo.png"), "mask": text("mask.png")}
    whole, most = {}, max(BATCHES)
    for num in sorted(BATCHES, reverse=True):
        argv, body = [*common, "--num", str(num)], {"seed": 7, "num": num, **({"labels": [label]} if label else {})}
        sampled = by_call(pipe(label, num_images=num, schedule=schedule, seed=7))
        assert sampled == by_command("sample", *argv, "--schedule", schedule)
        assert by_server(pipe, {**body, "schedule": schedule}) == (sampled, sampled)
        edited = by_call(pipe.edit(*pictures, label, num_images=num, schedule="3+2", seed=7))
        assert edited == by_command("edit", *argv, *files, "--schedule", "3+2")
        assert by_server(pipe, {**body, **sent, "schedule": "3+2"}) == (edited, edited)
        whole[num] = sampled, edited
        assert whole[num] == tuple(images[:num] for images in whole[most])
    assert len(set(whole[most][0])) == most
