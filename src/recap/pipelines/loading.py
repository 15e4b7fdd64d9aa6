"""What a pipeline is made of: found, read, and checked to belong together."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from recap import weights
from recap.checkpoints import CheckpointError, hub, load_pretrained
from recap.checkpoints.folder import CONFIG, ModelConfig, config_from, read_config, read_model_config
from recap.checkpoints.safe_files import check_limit
from recap.core.options import SamplingOptions
from recap.core.presets import PRESETS
from recap.models.adapter import Adapter
from recap.models.registry import FAMILIES, SIZES, build, family_of, size_name, tiny
from recap.tokenizers import BPE, KLVAE, VQGAN
from recap.tokenizers.bpe import NAME as TOKENIZER

Builder = Callable[..., nn.Module]  # a network from its configuration


class Parts(NamedTuple):
    """A model with its tokenizer, and what its folder says of their use."""

    net: nn.Module
    tokenizer: Any  # a network, or of text what encodes and decodes
    about: ModelConfig


def find_model(model: str | Path, *, revision: str | None = None, local_files_only: bool = False) -> Path | None:
    """The folder of a model on disk, inside of the package or on the hub; None for the name of a published size."""
    if hub.is_name(model):
        return hub.snapshot(str(model), revision=revision, local_files_only=local_files_only)
    return weights.locate(model)


def read_parts(folder: Path, tokenizer: Any = None, *, read: Builder = load_pretrained) -> Parts:
    """The network of a folder and its tokenizer: the given one, else the one it names or has inside."""
    config = read_config(folder)
    if config["family"] not in FAMILIES:
        raise CheckpointError(f"{folder} holds a {config['family']}, which is a tokenizer; give a model's folder")
    about = read_model_config(folder, config)
    net = read(folder)
    if FAMILIES[config["family"]].modality == "text":
        return Parts(net, tokenizer if tokenizer is not None else text_tokenizer(folder), about)
    if tokenizer is None:
        beside = folder / "tokenizer" if (folder / "tokenizer" / CONFIG).is_file() else None
        tokenizer = about.tokenizer or beside
    if isinstance(tokenizer, str) and not Path(tokenizer).is_dir():
        tokenizer = weights.find(tokenizer) or tokenizer
    if isinstance(tokenizer, str | Path):
        tokenizer = read(tokenizer)
    return Parts(net, tokenizer, about)


def text_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder, or none; files of other kinds than ours are read by transformers."""
    if not (folder / TOKENIZER).is_file():
        return None
    try:
        return BPE.load(folder)
    except ValueError as error:
        if find_spec("transformers") is None:
            raise CheckpointError(str(error)) from error
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{folder}: transformers cannot read its tokenizer ({error}); pass tokenizer="
        ) from error


def blank_net(folder: str | Path) -> nn.Module:
    """The network of a folder without its weights: all shapes and no memory."""
    return build(config_from(read_config(Path(folder)), folder), meta=True)


def find_parts(model: str | Path, make: Builder, read: Builder = load_pretrained, *, shrink: bool = False) -> Parts:
    """The parts of a folder as `read` reads them, or of a published size as `make` builds them."""
    folder = find_model(model)
    if folder is not None:
        if shrink:
            raise ValueError(f"published sizes can be shrunk (--tiny); {model} is a folder with a size of its own")
        return read_parts(folder, read=read)
    name = size_name(str(model))
    config, family = SIZES[name], family_of(SIZES[name])
    beside = None if family.tokenizer_inside else family.tokenizer_config(config)
    if shrink:
        config, beside = tiny(config), None if beside is None else tiny(beside)
    preset = name if name in PRESETS else family.preset
    tokenizer = None if beside is None else make(beside)
    return Parts(make(config), tokenizer, ModelConfig(options=SamplingOptions(preset)))


def check_pair(model: Adapter, tokenizer: nn.Module) -> None:
    """Refuse a tokenizer that cannot read the model's tokens, before anything is sampled."""
    side = math.isqrt(model.num_tokens) * getattr(getattr(tokenizer, "config", None), "stride", 1)
    check_limit("MOST_PIXELS", side**2, f"the model and its tokenizer draw images of {side}x{side} pixels")
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
