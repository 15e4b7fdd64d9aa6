"""What a pipeline is made of: found, read, and checked to belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from recap import weights
from recap.checkpoints import CheckpointError, hub, load_pretrained
from recap.checkpoints.about import About, read_about
from recap.checkpoints.folder import CONFIG, read_config
from recap.models.adapter import Adapter
from recap.models.zoo import FAMILIES
from recap.tokenizers import KLVAE, VQGAN


@dataclass(frozen=True, slots=True)
class Parts:
    """A model folder, read."""

    net: nn.Module
    tokenizer: nn.Module | None
    setting: str | None
    about: About


def read_parts(
    folder: Path,
    tokenizer: nn.Module | str | Path | None = None,
    *,
    read: Callable[[str | Path], nn.Module] = load_pretrained,
) -> Parts:
    """The network of a folder and its tokenizer: the given one, else the one it names or has inside."""
    config = read_config(folder)
    if config["family"] not in FAMILIES:
        raise CheckpointError(f"{folder} holds a {config['family']}, which is a tokenizer; give a model's folder")
    about = read_about(folder, config)
    net = read(folder)
    if tokenizer is None:
        beside = folder / "tokenizer" if (folder / "tokenizer" / CONFIG).is_file() else None
        tokenizer = about.tokenizer or beside
    if isinstance(tokenizer, str) and not Path(tokenizer).is_dir():
        tokenizer = weights.find(tokenizer) or tokenizer
    if isinstance(tokenizer, str | Path):
        tokenizer = read(tokenizer)
    return Parts(net, tokenizer, config.get("setting"), about)


def model_folder(model: str | Path, *, revision: str | None = None, local_files_only: bool = False) -> Path:
    """The folder of a model that is on disk, comes with the package, or is named as the hub names models."""
    if hub.is_name(model):
        return hub.snapshot(str(model), revision=revision, local_files_only=local_files_only)
    try:
        folder = weights.locate(model)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if folder is None:
        inside = f", or use one that does: {', '.join(weights.embedded())}" if weights.embedded() else ""
        raise CheckpointError(
            f"{model} is a published size whose weights do not come with the package; write its official file into "
            f"a folder with `recap convert FILE {model}`{inside}"
        )
    return folder


def check_pair(model: Adapter, tokenizer: nn.Module) -> None:
    """Refuse a tokenizer that cannot read the model's tokens, before anything is sampled."""
    codes = getattr(model.config, "codes", None)
    drawn = f"{codes} codes" if codes is not None else f"{model.config.channels} latent channels"
    read = "neither codes nor latents"
    if isinstance(tokenizer, VQGAN):
        read = f"{tokenizer.config.codes} codes"
    elif isinstance(tokenizer, KLVAE):
        read = f"{tokenizer.config.latent_channels} latent channels"
    if drawn != read:
        raise ValueError(
            f"the model draws tokens of {drawn}, but {type(tokenizer).__name__} reads {read}; "
            f"give the tokenizer that the model was trained with"
        )
