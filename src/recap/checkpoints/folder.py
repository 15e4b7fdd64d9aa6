"""Models on disk: a folder with `config.json` and `model.safetensors`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recap.checkpoints.int8 import HOW_TO_READ, SCALE, restore
from recap.checkpoints.int8 import compact as made_compact
from recap.checkpoints.safe_files import CheckpointError, check_kinds, read_json
from recap.core.options import SamplingOptions
from recap.models.registry import TOKENIZERS, architecture_of, architectures, build, recognised

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_KEYS_SHOWN = 8  # of those that do not fit


def save_pretrained(
    net: nn.Module,
    folder: str | Path,
    *,
    compact: bool = False,
    scales: Mapping[str, Tensor] | None = None,
    **about: Any,
) -> Path:
    """Write a network to `folder`; `about` goes into the configuration as it is (a name, a setting).

    `compact` keeps large tensors as int8 (see `recap.checkpoints.int8`): a quarter of the size, and close
    to the original rather than equal, except for weights that were rounded to `scales` before
    (`recap.training.rounding`). Other entries that `about` may have are those of `ModelConfig`.
    """
    folder = Path(folder)
    taken = {"format", "family", "config"} & set(about)
    if taken:
        raise CheckpointError(f"{', '.join(sorted(taken))} in {CONFIG} is not for the caller to set; leave it out")
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give a folder to write {CONFIG} and {WEIGHTS} into")
    known = architecture_of(net)
    if known is None:
        raise CheckpointError(f"{type(net).__name__} is not one of the library's networks; only those can be saved")
    config = {"format": "recap", "family": known.name, **about, "config": asdict(net.config)}  # type: ignore[call-overload]
    tensors = {key: value.detach().cpu().contiguous() for key, value in net.state_dict().items()}
    metadata = {"format": "pt"}
    if compact:
        tensors = made_compact(tensors, {key: value.cpu() for key, value in (scales or {}).items()})
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
    try:
        net = build(config_from(config, folder), meta=True)
    except (RuntimeError, TypeError, OverflowError) as error:  # numbers that no tensor can have
        raise CheckpointError(f"{folder} describes an impossible model: {str(error).splitlines()[0]}") from error
    tensors = restore(read_tensors(folder / WEIGHTS), folder / WEIGHTS)
    load_strict(net, tensors, source=str(folder / WEIGHTS))
    return net.to(device=device, dtype=torch_dtype)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; a model is a folder with {CONFIG} and {WEIGHTS}")
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {CONFIG}; convert an official file with `recap convert FILE OUT`")
    try:
        config = read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{error}; write it again with save_pretrained") from error
    entries = config if isinstance(config, dict) else {}
    if not isinstance(entries.get("family"), str) or not isinstance(entries.get("config"), dict):
        raise CheckpointError(f"{path} has no 'family' and 'config' entries; it was not written by recap")
    return entries


def config_from(data: Mapping[str, Any], source: object) -> Any:
    """The configuration object that a parsed `config.json` describes."""
    try:
        return _config(data["family"], data["config"])
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{source} describes an impossible model: {error}") from error


def _config(family: str, given: object) -> Any:
    kinds = {name: kind.config for name, kind in architectures().items()}
    if family not in kinds:
        raise ValueError(f"its family is {family!r}; known families: {', '.join(kinds)}")
    if not isinstance(given, dict):
        raise ValueError(f"{family} is {given!r}; it must be an object")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if unknown := set(values) - {field.name for field in fields(kinds[family])}:
        raise ValueError(f"it has settings that {family} does not know: {', '.join(sorted(unknown))}")
    for field in fields(kinds[family]):
        value = values.get(field.name, field.default)
        parts = value if isinstance(field.default, tuple) and isinstance(value, tuple) else (value,)
        if isinstance(field.default, bool):
            if not isinstance(value, bool):
                raise ValueError(f"{field.name} is {value!r}; it must be true or false")
        elif isinstance(field.default, int | tuple) and any(type(part) is not int for part in parts):
            raise ValueError(f"{field.name} is {value!r}; sizes are integers")
    inside = {name: _config(name, values[name]) for name in TOKENIZERS if values.get(name) is not None}
    return kinds[family](**values | inside)


def read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; the folder is incomplete")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); it is truncated or corrupt, copy it again"
        ) from error
    check_kinds(tensors, path)
    # products of what lies otherwise in memory than torch's own tensors are rounded otherwise
    return {key: value.clone() if value.data_ptr() % 64 else value for key, value in tensors.items()}


def load_strict(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Give `net` the tensors of a checkpoint; every key must be there once and have the right shape."""
    own = net.state_dict()
    faults = {
        "missing": [key for key in own if key not in tensors],
        "unexpected": [key for key in tensors if key not in own],
        "of another shape": [
            f"{key} {_kind(tensors[key])} instead of {_kind(ours)}"
            for key, ours in own.items()
            if key in tensors
            and (tensors[key].shape != ours.shape or tensors[key].is_floating_point() != ours.is_floating_point())
        ],
    }
    if any(faults.values()):
        lists = "".join(_listed(what, items) for what, items in faults.items() if items)
        raise CheckpointError(
            f"{source} does not fit {type(net).__name__}({getattr(net, 'config', '')}){lists}\n"
            f"The file looks like {describe(tensors)}."
        )
    net.load_state_dict(dict(tensors), strict=True, assign=True)


def describe(tensors: Mapping[str, Tensor]) -> str:
    """A guess for people at what a state dict is: the published size, or the family and what it measures."""
    kind = recognised(tensors)
    if kind is None:
        return "no model that this library knows"
    try:
        config = kind.infer(tensors, None)
    except (KeyError, IndexError, ValueError):
        return f"a {kind.name} of unknown size"
    names = [name for name, size in kind.sizes.items() if size == config]
    return names[0] if names else f"a {kind.name} of another size: {config}"


def _kind(tensor: Tensor) -> str:
    """What must agree: the shape, and whether it holds weights or integers."""
    return f"{tuple(tensor.shape)}" if tensor.is_floating_point() else f"{tuple(tensor.shape)} of integers"


def _listed(what: str, items: Sequence[str]) -> str:
    more = f"\n  ... and {len(items) - MAX_KEYS_SHOWN} more" if len(items) > MAX_KEYS_SHOWN else ""
    return f"\n{len(items)} {what}:\n  " + "\n  ".join(items[:MAX_KEYS_SHOWN]) + more


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The entries of a `config.json` that are about using the model; each may be missing."""

    tokenizer: Path | None = None
    class_names: tuple[str, ...] | None = None
    options: SamplingOptions | None = None


def read_model_config(folder: Path, config: Mapping[str, Any]) -> ModelConfig:
    """The entries "tokenizer", "class_names" and "sampling" of a model folder's parsed `config.json`."""
    try:
        return ModelConfig(_tokenizer(folder, config), _class_names(config), _options(config))
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} has {error}") from error


def _tokenizer(folder: Path, config: Mapping[str, Any]) -> Path | None:
    """The folder that a relative path such as "../flowers-kl" means; it stays beside or in the model's folder."""
    entry = config.get("tokenizer")
    if entry is None:
        return None
    if not isinstance(entry, str) or not entry:
        raise ValueError(f"tokenizer {entry!r}; expected a relative path such as '../name'")
    own = folder.resolve()
    found = (own / entry).resolve()  # follows links too
    if own.parent not in found.parents:
        raise ValueError(f"tokenizer {entry!r}, which leads out of {own.parent}; put it into that folder")
    return found


def _class_names(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = config.get("class_names")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"class_names {names!r:.80}; expected a list of names")
    classes = config["config"].get("classes", len(names))
    if len(names) != classes:
        raise ValueError(f"{len(names)} class_names for {classes} classes; give one each")
    return tuple(names)


def _options(config: Mapping[str, Any]) -> SamplingOptions | None:
    """The entry "sampling"; folders of version 0.1 may have a "setting" instead of its preset, and "plain"."""
    entry = config.get("sampling", {})
    if not isinstance(entry, dict):
        raise ValueError(f"sampling {entry!r}; expected an object such as {{'full': 48}}")
    values = {"warmup" if name == "plain" else name: value for name, value in entry.items()}
    if "preset" not in values and config.get("setting") is not None:
        values["preset"] = config["setting"]
    try:
        return SamplingOptions.from_json(values) if values else None
    except ValueError as error:
        raise ValueError(f"a sampling that cannot be: {error}") from error


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
