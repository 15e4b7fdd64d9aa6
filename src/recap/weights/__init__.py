"""The models that come with the package: folders beside this file."""

from __future__ import annotations

from pathlib import Path

from recap.checkpoints import CheckpointError
from recap.checkpoints.folder import CONFIG, read_config
from recap.models.registry import FAMILIES, size_name

HOME = Path(__file__).parent
FIRST = ("flowers-maskgit", "flowers-mar", "flowers-mage")  # the order in which a default is looked for


def folders() -> list[str]:
    """Names of all folders that come with the package, models and tokenizers, the default model first."""
    names = sorted(path.parent.name for path in HOME.glob(f"*/{CONFIG}"))
    return [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]


def embedded() -> list[str]:
    """Names of the models that come with the package, the default first."""
    return [name for name in folders() if read_config(HOME / name)["family"] in FAMILIES]


def default(modality: str = "images") -> str | None:
    """The model that draws when none is named."""
    names = (name for name in embedded() if FAMILIES[read_config(HOME / name)["family"]].modality == modality)
    return next(names, None)


def find(name: str) -> Path | None:
    """The folder of a model or tokenizer that comes with the package."""
    key = name.lower().replace("_", "-")
    return HOME / key if key in folders() else None


def locate(model: str | Path) -> Path | None:
    """The folder that `model` means: a model on disk, else one that comes with the package.

    A folder of pictures that happens to have a model's name does not hide it. None for the name of a
    published size, which has no weights here; other names are refused.
    """
    name = str(model)
    folder = find(name)
    if Path(model).is_dir() and (folder is None or (Path(model) / "config.json").is_file()):
        return Path(model)
    if folder is not None:
        return folder
    try:
        size_name(name, embedded())
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return None
