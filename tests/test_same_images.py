"""An image of a seed is the same picture in every version, by whatever way it is asked for, in any batch.

The digests were made by version 0.1.0. Sums are rounded as the processor's instructions have it, so the processes
that are compared with them are held to instructions that all processors have.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recap.cli import main
from recap.pipelines import Pipeline
from tests.pipelines.test_pipeline import pipeline
from tests.tiny import FAMILIES

DIGESTS_BY = "2.13"  # another torch may round in another way
DIGESTS = {
    "flowers-maskgit": ("3de07b906cdee1d2", "6623c52bf7baa50b", "c58dcbb91a8fa98a"),
    "flowers-mage": ("76f1facdfd1e935a", "43f7518552813212", "c9c07eb2f04ddffb"),
    "flowers-mar": ("b975d4142ea1626c", "97dc90fd76e1168c", "649aac2f8a903e44"),
}
ALIKE = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}
# sampled with reuse, without it, and a part of the latter edited
RUNS = """
import sys
from recap.cli import main

model = sys.argv[1]
label = [] if model == "flowers-mage" else ["--labels", "sunflower"]
own = ["--model", model, *label, "--num", "1"]
box = ["--image", "plain/000000.png", "--redraw", "32,32,96,128"]
sys.exit(
    main(["sample", *own, "--seed", "5", "--full", "3", "--local", "2", "--out", "grouped"])
    or main(["sample", *own, "--seed", "5", "--full", "4", "--local", "0", "--out", "plain"])
    or main(["edit", *own, *box, "--seed", "6", "--full", "2", "--local", "1", "--out", "edited"])
)
"""
BATCHES = (1, 3, 8)
SCHEDULE = "5+3:chain=3,warmup=1"


def digest(path: Path) -> str:
    """What is in a picture, however it was packed."""
    return hashlib.sha256(np.asarray(Image.open(path)).tobytes()).hexdigest()[:16]


@pytest.mark.skipif(
    not torch.__version__.startswith(DIGESTS_BY), reason=f"the digests are those of torch {DIGESTS_BY}"
)
@pytest.mark.parametrize("model", DIGESTS)
def test_pictures_are_those_of_the_version_before(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUNS, model]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | ALIKE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = tuple(digest(tmp_path / name / "000000.png") for name in ("grouped", "plain", "edited"))
    assert found == DIGESTS[model]


@pytest.fixture(params=["stand-in", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where images are drawn together: a GPU, and what is done there on the CPU."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no GPU")
        return "cuda"
    monkeypatch.setattr("recap.runs.draw.ALONE", ())
    return "cpu"


def files(*argv: str) -> list[bytes]:
    """The pictures that a command writes."""
    assert main([*argv, "--out", "out", "--overwrite"]) == 0
    return [path.read_bytes() for path in sorted(Path("out").glob("[0-9]*.png"))]


def packed(output: Any) -> list[bytes]:
    """The images of a call, as the command writes them."""
    for index, image in enumerate(output.images):
        image.save(f"{index}.png")
    return [Path(f"{index}.png").read_bytes() for index in range(len(output.images))]


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_of_any_size_and_all_ways_of_asking_give_the_same_images(
    family: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schedule = SCHEDULE + (",head_steps=4/3" if family == "mar" else "")
    pipeline(family).save_pretrained("model")
    pipe = Pipeline.from_pretrained("model", device=device)
    photo = np.random.default_rng(0).integers(0, 256, (pipe.side, pipe.side, 3), dtype=np.uint8)
    mask = np.zeros((pipe.side, pipe.side), dtype=np.uint8)
    mask[:, pipe.side // 2 :] = 255
    Image.fromarray(photo).save("photo.png")
    Image.fromarray(mask).save("mask.png")
    label = [2] if pipe.model.classes else None
    common = ["--model", "model", "--device", device, "--seed", "7", *(["--labels", "2"] if label else [])]
    edited = ["--image", "photo.png", "--mask", "mask.png"]
    whole, most = {}, max(BATCHES)
    for num in sorted(BATCHES, reverse=True):
        labels = label * num if label else None
        count = None if label else num
        by_call = packed(pipe(labels, num_images=count, schedule=schedule, seed=7))
        by_edit = packed(
            pipe.edit(Image.open("photo.png"), Image.open("mask.png"), label, num_images=num, schedule="3+2", seed=7)
        )
        by_command = files("sample", *common, "--num", str(num), "--schedule", schedule)
        by_edit_command = files("edit", *common, *edited, "--num", str(num), "--schedule", "3+2")
        assert by_call == by_command
        assert by_edit == by_edit_command
        whole[num] = by_call, by_edit
        assert whole[num] == tuple(images[:num] for images in whole[most])
    assert len(set(whole[most][0])) == most
