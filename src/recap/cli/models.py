"""List the models that come with the package, and the sizes that can be built."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from recap import weights
from recap.checkpoints.folder import config_from, read_config, read_model_config
from recap.checkpoints.shards import WEIGHTS
from recap.models.registry import FAMILIES, SIZES, TOKENIZER_SIZES, count_parameters, family_of
from recap.view.say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> int:
    for name in weights.folders():
        say(embedded_line(name, weights.HOME / name))
    for name, config in SIZES.items():
        family = family_of(config)
        tokens = "" if family.modality == "text" else f"{config.num_tokens} tokens  "
        say(line(name, family.name, config, "", f"width {getattr(config, 'width', ''):<5} {tokens}{drawn(config)}"))
    for name, tokenizer in TOKENIZER_SIZES.items():
        say(line(name, "tokenizer", tokenizer, "", f"{tokenizer.stride} pixels a token"))
    return 0


def embedded_line(name: str, folder: Path) -> str:
    about = read_config(folder)
    config = config_from(about, folder)
    weights_file = folder / WEIGHTS
    size = f"{weights_file.stat().st_size / 1e6:.1f} MB" if weights_file.is_file() else "missing"
    if about["family"] not in FAMILIES:
        return line(name, "tokenizer", config, size, f"{config.stride} pixels a token")
    more = read_model_config(folder, about)
    what = drawn(config)
    if more.tokenizer is not None:
        side = math.isqrt(config.num_tokens) * config_from(read_config(more.tokenizer), more.tokenizer).stride
        what = f"{side}x{side} pixels, {what}"
    if more.class_names:
        what += f": {', '.join(more.class_names[:3])}{', ...' if len(more.class_names) > 3 else ''}"
    return line(name, about["family"], config, size, what)


def drawn(config: Any) -> str:
    if family_of(config).modality == "text":
        return f"up to {config.num_tokens} tokens of {config.codes} ids"
    classes = getattr(config, "classes", 0)
    return f"{classes} classes" if classes else "unconditional"


def line(name: str, family: str, config: Any, size: str, what: str) -> str:
    return f"{name:<16} {family:<9} {count_parameters(config) / 1e6:6.1f} M  {size:>9}  {what}"
