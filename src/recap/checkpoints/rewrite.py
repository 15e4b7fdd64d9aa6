"""A published folder as one of the library's own: file by file, so that its model never has to fit into memory."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from recap.checkpoints.folder import (
    CONFIG,
    METADATA,
    PUBLISHED,
    as_json,
    blank,
    check_expected,
    check_free,
    check_strict,
    names_of,
    read_config,
    replace_file,
)
from recap.checkpoints.safe_files import CheckpointError, check_limit
from recap.checkpoints.shards import INDEX, WEIGHTS, Weights, weights_in
from recap.models.registry import published_name

COMPANIONS = (  # what belongs to a model of text, beside its weights
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip


def rewrite(folder: str | Path, out: str | Path, *, dtype: torch.dtype | None = None, expected: Any = None) -> Any:
    """Write a published folder anew in the library's form, and give its configuration, which may be `expected`.

    In memory there is one of its files at a time. The files of a tokenizer are copied.
    """
    folder, out = Path(folder), Path(out)
    read = read_config(folder)
    if read.get("format") != PUBLISHED:
        raise CheckpointError(f"{folder} is a folder of this library already; load it as it is")
    check_free(out, CONFIG, WEIGHTS, INDEX)
    net, weights = blank(read, folder), weights_in(folder)
    config: Any = net.config
    check_expected(config, expected, folder)
    names = names_of(read, weights.shapes)
    check_strict(net, {name: weights.shapes[key] for key, name in names.items()}, str(weights.source))
    name = published_name(config)
    text = as_json({**read, "format": "recap", **({"name": name} if name else {}), "config": asdict(config)})
    out.mkdir(parents=True, exist_ok=True)
    where, size = dict[str, str](), 0
    for number, file in enumerate(weights.files, start=1):
        parts = len(weights.files)
        name = WEIGHTS if parts == 1 else f"model-{number:05}-of-{parts:05}.safetensors"
        tensors = {
            names[key]: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
            for key, tensor in Weights.of(file)
            if key in names
        }
        size += sum(tensor.nbytes for tensor in tensors.values())
        where |= dict.fromkeys(tensors, name)
        write(out / name, tensors)
        del tensors
    if len(weights.files) > 1:
        index = as_json({"metadata": {"total_size": size}, "weight_map": where})
        replace_file(out / INDEX, lambda path: path.write_text(index))
    copy_companions(folder, out)
    replace_file(out / CONFIG, lambda path: path.write_text(text))  # the last: without it there is no model
    return config


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    replace_file(path, lambda draft: save_file(tensors, draft, metadata=METADATA))


def copy_companions(folder: Path, out: Path) -> list[str]:
    """The files of a tokenizer, as they are; nothing that could run is among them."""
    found = [name for name in COMPANIONS if (folder / name).is_file()]
    for name in found:
        source = folder / name
        check_limit("MOST_TEXT_BYTES", source.stat().st_size, f"{source} has {source.stat().st_size:,} bytes")
        replace_file(out / name, lambda path, source=source: shutil.copyfile(source, path))
    return found
