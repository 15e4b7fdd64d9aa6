"""A folder to edit pictures in."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap import SamplingOptions
from recap.view.images import box_mask
from tests.pipelines.test_pipeline import pipeline


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of each kind, a picture of its size, a large one with a mask, and nothing else."""
    monkeypatch.chdir(tmp_path)
    for family in ("maskgit", "mage"):
        pipe = pipeline(family)
        pipe.options = pipe.options.override(SamplingOptions(full=6, local=4))
        pipe.save_pretrained(tmp_path / family)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("small.png")
    Image.fromarray(pixels).resize((60, 40)).save("large.jpg")
    box_mask(8, 4, 0, 8, 8).save("mask.png")
    Image.new("L", (8, 8), 0).save("black.png")
    Image.fromarray(np.pad(np.full((40, 20), 255, np.uint8), ((0, 0), (0, 40)))).save("left.png")
    return tmp_path
