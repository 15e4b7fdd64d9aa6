"""What a model folder says beside its weights: its tokenizer, its class names, how it is sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from recap.checkpoints.errors import CheckpointError
from recap.checkpoints.folder import CONFIG
from recap.core.presets import Sampling


@dataclass(frozen=True, slots=True)
class About:
    """The entries of a `config.json` that are about using the model; each may be missing."""

    tokenizer: Path | None = None
    class_names: tuple[str, ...] | None = None
    sampling: Sampling | None = None


def read_about(folder: Path, config: Mapping[str, Any]) -> About:
    """The entries "tokenizer", "class_names" and "sampling" of a model folder's parsed `config.json`."""
    return About(
        tokenizer_folder(folder, config["tokenizer"]) if config.get("tokenizer") is not None else None,
        _class_names(folder, config),
        _sampling(folder, config.get("sampling")),
    )


def tokenizer_folder(folder: Path, entry: object) -> Path:
    """The folder that a relative path such as "../flowers-kl" means; it stays beside or in the model's folder."""
    source = folder / CONFIG
    if not isinstance(entry, str) or not entry:
        raise CheckpointError(f"{source} has tokenizer {entry!r}; expected a relative path such as '../name'")
    windows = PureWindowsPath(entry)
    if PurePosixPath(entry).is_absolute() or windows.drive or windows.root:
        raise CheckpointError(f"{source} has tokenizer {entry!r}, an absolute path; make it relative to the folder")
    own = folder.resolve()
    found = (own / entry).resolve()  # follows links too
    if own.parent not in found.parents:
        raise CheckpointError(
            f"{source} has tokenizer {entry!r}, which leads out of {own.parent}; "
            f"put the tokenizer into the model's folder or beside it"
        )
    return found


def _class_names(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = config.get("class_names")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise CheckpointError(f"{folder / CONFIG} has class_names that are no list of names; expected strings")
    classes = config["config"].get("classes", len(names))
    if len(names) != classes:
        raise CheckpointError(f"{folder / CONFIG} has {len(names)} class_names for {classes} classes; give one each")
    return tuple(names)


def _sampling(folder: Path, entry: object) -> Sampling | None:
    if entry is None:
        return None
    if not isinstance(entry, dict):
        raise CheckpointError(f"{folder / CONFIG} has sampling {entry!r}; expected an object with a 'preset'")
    try:
        return Sampling.from_dict(entry)
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be sampled as it says: {error}") from error
