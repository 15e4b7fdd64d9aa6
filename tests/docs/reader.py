"""What the reader of a page is said to have: files in the folder, and names that a page does not define itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import recap
from recap.models.zoo import SIZES, TOKENIZER_SIZES, adapt, build, randomize
from tests.models import standins

Names = dict[str, Any]


def prepare(folder: Path) -> None:
    """A photo with its mask, official files as one downloads them, and the folder that they are converted to."""
    pixels = np.random.default_rng(0).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.jpg")
    mask = np.zeros((160, 200), np.uint8)
    mask[:, 100:] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    net, tokenizer = randomize(build(SIZES["mar-large"])), randomize(build(TOKENIZER_SIZES["kl16"]))
    torch.save({"model": net.state_dict(), "model_ema": net.state_dict()}, folder / "checkpoint-last.pth")
    torch.save({"state_dict": tokenizer.state_dict()}, folder / "kl16.ckpt")
    recap.Pipeline(net, tokenizer, setting="mar-large").save_pretrained(folder / "mar-large")


def official() -> Names:
    """An object of somebody else's class."""
    return {"mar": standins.random(standins.MaskedAutoregressor())}


def own_model() -> Names:
    return {"model": official()["mar"]}


def loop() -> Names:
    """What the sampling loop takes beside a schedule and a selector."""
    model = adapt(randomize(build(SIZES["mar-large"])))
    noise = recap.Noise(recap.image_generators(0, range(1)), "cpu")
    return {"model": model, "labels": torch.tensor([207]), "noise": noise}


def picture() -> Names:
    """A picture of the size that `mar-large` draws, and what of it is to be drawn anew."""
    mask = np.zeros((256, 256), dtype=bool)
    mask[:, 240:] = True
    return {"image": Image.new("RGB", (256, 256), "teal"), "mask": mask}


# what a block holds that has these words in it, unless its page has made such a thing before
HELD: tuple[tuple[str, Callable[[], Names]], ...] = (
    ("accelerate(mar)", official),
    ("accelerate(model)", own_model),
    ("grouped_decode(model, labels", loop),
    ("pipe.edit(image, mask", picture),
)


def held(code: str) -> Names:
    """The names that a block may use without defining them."""
    names: Names = {}
    for words, make in HELD:
        if words in code:
            names |= make()
    return names
