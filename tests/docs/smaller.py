"""What is made smaller so that pages run in seconds; nothing else of them is changed.

Networks: under every name, of the models inside and of published sizes alike, lies a network with the same tokens,
classes, image size and way of sampling, but narrow, shallow and with random weights. Commands: fewer images, and the
CPU instead of a GPU. Python: the CPU instead of a GPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from recap import weights
from recap.checkpoints import save_pretrained
from recap.checkpoints.folder import config_from
from recap.models.mar import MARConfig
from recap.models.registry import SIZES, TOKENIZER_SIZES, architectures, build, randomize
from recap.tokenizers.bpe import NAME as TOKENIZER

WIDTH, HEADS = 32, 2
SMALL: dict[str, Any] = {
    "width": WIDTH,
    "heads": HEADS,
    "decoder_heads": HEADS,
    "kv_heads": HEADS,
    "hidden": 2 * WIDTH,
    "depth": 2,
    "encoder_depth": 2,
    "decoder_depth": 1,
    "head_depth": 1,
    "head_width": WIDTH,
    "patch": 0,
    **dict.fromkeys(("blocks", "encoder_blocks", "decoder_blocks"), 1),  # of tokenizers
    "channels": WIDTH,
}

IN_PYTHON = (('"cuda"', '"cpu"'), ('.compile("graphs")', '.compile("eager")'))  # graphs are of CUDA
IN_COMMANDS: dict[str, Any] = {"--device": "cpu", "--engine": "eager", "--port": "0"}
AT_MOST = {"--num": 4}


def small(config: Any) -> Any:
    """The same model, narrow and shallow."""
    changes = {field.name: SMALL[field.name] for field in fields(config) if field.name in SMALL}
    if isinstance(config, MARConfig):
        del changes["channels"]  # of the tokens
    if hasattr(config, "multipliers"):
        changes["multipliers"] = (1,) * len(config.multipliers)
    if getattr(config, "vqgan", None) is not None:
        changes["vqgan"] = small(config.vqgan)
    return replace(config, **changes)


def write_models(home: Path) -> None:
    """Small networks in the place of the models that come with the package."""
    for name in weights.folders():
        about = json.loads((weights.HOME / name / "config.json").read_text())
        net = randomize(build(small(config_from(about, name))))
        rest = {key: value for key, value in about.items() if key not in ("format", "family", "config")}
        save_pretrained(net, home / name, **rest)
        if (spelled := weights.HOME / name / TOKENIZER).is_file():
            shutil.copy(spelled, home / name)


@contextmanager
def smaller(home: Path | None) -> Iterator[None]:
    """All names stand for small networks, and small files are read as if such sizes had been published.

    Without a `home` of small ones, the models inside stay as they are.
    """
    with pytest.MonkeyPatch.context() as patch:
        if home is not None:
            patch.setattr(weights, "HOME", home)
        tables: list[Any] = [SIZES, TOKENIZER_SIZES, *(kind.sizes for kind in architectures().values())]
        for sizes in tables:
            for name, config in list(sizes.items()):
                patch.setitem(sizes, name, small(config))
        yield


def python(code: str) -> str:
    """A Python block for the CPU."""
    for printed, run in IN_PYTHON:
        code = code.replace(printed, run)
    return code


def command(words: Sequence[str], fewer: bool = True) -> list[str]:
    """The words of a command for the CPU, and with few images unless the page shows what is printed of them."""
    made = list(words)
    for place, word in enumerate(made[:-1]):
        if word in IN_COMMANDS:
            made[place + 1] = IN_COMMANDS[word]
        elif word in AT_MOST and fewer:
            made[place + 1] = str(min(AT_MOST[word], int(made[place + 1])))
    return made
