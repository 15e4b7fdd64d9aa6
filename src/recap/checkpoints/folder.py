"""Models on disk: a folder with `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recap.checkpoints.compact import HOW_TO_READ, SCALE, restore
from recap.checkpoints.compact import compact as made_compact
from recap.checkpoints.errors import CheckpointError
from recap.checkpoints.strict import load_strict
from recap.limits import parse_json, read_text
from recap.models.zoo import FAMILIES, TOKENIZERS, build, field_names

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_pretrained(
    net: nn.Module,
    folder: str | Path,
    *,
    compact: bool = False,
    scales: Mapping[str, Tensor] | None = None,
    **about: Any,
) -> Path:
    """Write a network to `folder`; `about` goes into the configuration as it is (a name, a setting).

    `compact` keeps large tensors as int8 (see `recap.checkpoints.compact`): a quarter of the size, and close
    to the original rather than equal, except for weights that were rounded to `scales` before
    (`recap.checkpoints.rounding`). Other entries that `about` may have are read by `recap.checkpoints.about`.
    """
    folder = Path(folder)
    taken = {"format", "family", "config"} & set(about)
    if taken:
        raise CheckpointError(f"{', '.join(sorted(taken))} in {CONFIG} is not for the caller to set; leave it out")
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give a folder to write {CONFIG} and {WEIGHTS} into")
    config = {"format": "recap", "family": family_name(net), **about, "config": asdict(net.config)}  # type: ignore[call-overload]
    tensors = {key: value.detach().contiguous() for key, value in net.state_dict().items()}
    metadata = {"format": "pt"}
    if compact:
        grids = {key: value.cpu() for key, value in (scales or {}).items()}
        tensors = made_compact({key: value.cpu() for key, value in tensors.items()}, grids)
        if any(key.endswith(SCALE) for key in tensors):
            metadata["compact"] = HOW_TO_READ
    try:
        text = json.dumps(config, indent=2) + "\n"
    except TypeError as error:
        raise CheckpointError(f"{CONFIG} cannot hold this: {error}; give strings, numbers and lists") from error
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder / WEIGHTS, lambda path: save_file(tensors, path, metadata=metadata))
    _replace(folder / CONFIG, lambda path: path.write_text(text))
    return folder


def load_pretrained(
    folder: str | Path, *, torch_dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> nn.Module:
    """Read a network from `folder`, in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    size = config_from(config, folder)
    try:
        net = build(size, meta=True)
    except (RuntimeError, TypeError, OverflowError) as error:  # numbers that no tensor can have
        raise CheckpointError(f"{folder} describes an impossible model: {str(error).splitlines()[0]}") from error
    tensors = restore(read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    load_strict(net, tensors, source=str(folder / WEIGHTS))
    return net.to(device=device, dtype=torch_dtype)


def read_config(folder: Path) -> dict[str, Any]:
    """The parsed `config.json` of a model folder."""
    path = folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; a model is a folder with {CONFIG} and {WEIGHTS}")
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}; convert an official file with `recap convert FILE OUT`")
    try:
        config = parse_json(read_text(path), "it", finite=True)
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); write it again with save_pretrained") from error
    if (
        not isinstance(config, dict)
        or not isinstance(config.get("family"), str)
        or not isinstance(config.get("config"), dict)
        or not isinstance(config.get("setting", ""), str)
    ):
        raise CheckpointError(f"{path} has no 'family' and 'config' entries; it was not written by recap")
    return config


def config_from(data: Mapping[str, Any], source: object) -> Any:
    """The configuration object that a parsed `config.json` describes."""
    kinds = {name: f.config for name, f in FAMILIES.items()} | {name: kind for name, (kind, _) in TOKENIZERS.items()}
    family = data["family"]
    if family not in kinds:
        raise CheckpointError(f"{source} is of family {family!r}; known families: {', '.join(kinds)}")
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in data["config"].items()}
    unknown = set(values) - field_names(kinds[family])
    if unknown:
        raise CheckpointError(f"{source} has settings that {family} does not know: {', '.join(sorted(unknown))}")
    for field in fields(kinds[family]):
        value = values.get(field.name, field.default)
        parts = value if isinstance(field.default, tuple) and isinstance(value, tuple) else (value,)
        if isinstance(field.default, int | tuple) and any(type(part) is not int for part in parts):
            raise CheckpointError(
                f"{source} describes an impossible model: {field.name} is {value!r}; sizes are integers"
            )
    if values.get("vqgan") is not None:
        if not isinstance(values["vqgan"], dict):
            raise CheckpointError(
                f"{source} describes an impossible model: vqgan is {values['vqgan']!r}; it must be an object"
            )
        values["vqgan"] = config_from({"family": "vqgan", "config": values["vqgan"]}, source)
    try:
        return kinds[family](**values)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{source} describes an impossible model: {error}") from error


def family_name(net: nn.Module) -> str:
    config = getattr(net, "config", None)
    for name, kind in [*((n, f.config) for n, f in FAMILIES.items()), *((n, k) for n, (k, _) in TOKENIZERS.items())]:
        if isinstance(config, kind):
            return name
    raise CheckpointError(f"{type(net).__name__} is not one of the library's networks; only those can be saved")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; the folder is incomplete")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); it is truncated or corrupt, copy it again"
        ) from error


def _replace(path: Path, write: Any) -> None:
    """Write beside the target and move it into place, so that no half-written file is ever seen."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch()
        mode = draft.stat().st_mode  # what the user's umask grants; safetensors would keep files to their owner
        write(draft)
        draft.chmod(mode)
        os.replace(draft, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
