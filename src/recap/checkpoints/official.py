"""Official checkpoint files and folders, read without running anything that is in them."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recap.checkpoints.folder import (
    CONFIG,
    PUBLISHED,
    Source,
    check_expected,
    config_from,
    fill,
    names_of,
    own_names,
    read_config,
)
from recap.checkpoints.safe_files import CheckpointError, check_tensors, read_pickle
from recap.checkpoints.shards import INDEX, PICKLES, SHARD, WEIGHTS, Weights, weights_in
from recap.models.registry import SIZES, TOKENIZER_SIZES, TOKENIZERS, architectures, build, recognised, size_name

# data that training scripts leave beside the weights; their constructors do nothing but hold it
HARMLESS: list[Any] = [argparse.Namespace, np.dtype, type(np.dtype("float64")), type(np.dtype("int64"))]
WRAPPERS = ("model_ema", "model", "state_dict")  # in this order: MAR is evaluated with its averaged weights


def load_official(
    path: str | Path, *, model: str | None = None, heads: int | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """A network from the official file of a family or tokenizer that the library knows, or from a published folder.

    The size follows from the file; `model` names the size that is expected, and another one is an error. Tensors are
    converted one by one.
    """
    path = Path(path)
    if model is not None and heads is not None:
        raise CheckpointError(f"{model} has a known number of heads; give either model or heads")
    expected = None if model is None else size_of(model)
    source, about = _source(path)
    if about is None:
        names = _official_names(source.shapes, model)
        config = expected or _measured({name: source.shapes[key] for key, name in names.items()}, heads)
    else:
        names, config = names_of(about, source.shapes), config_from(about, path)
        if heads is not None:
            raise CheckpointError(f"{path / CONFIG} says how many heads there are; leave heads out")
        check_expected(config, expected, path)
    net = build(config, meta=True)
    inside = {name for name in names.values() if name.partition(".")[0] in TOKENIZERS}  # a tokenizer's stay
    fill(net, source, names, dtype, kept=inside)
    return net


def size_of(model: str) -> Any:
    """The published size of a name."""
    return TOKENIZER_SIZES[model] if model in TOKENIZER_SIZES else SIZES[size_name(model)]


class Held:
    """Tensors that were read together; those that were taken out are held no longer."""

    def __init__(self, source: Path, tensors: dict[str, Tensor]) -> None:
        self.source, self.shapes = source, tensors

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        while self.shapes:
            yield self.shapes.popitem()


def _source(path: Path) -> tuple[Source, dict[str, Any] | None]:
    """The tensors of a file, or of a published folder with what its configuration means."""
    if path.is_dir():
        about = read_config(path)
        if about.get("format") != PUBLISHED:
            raise CheckpointError(f"{path} is a folder of this library already; load it as it is")
        pickles = [name for name in PICKLES if (path / name).is_file()]
        if pickles and not any((path / name).is_file() for name in (WEIGHTS, INDEX)):
            if pickles[0] != PICKLES[0]:
                raise CheckpointError(
                    f"{path} has its weights in pickles of several files ({pickles[0]}), which are not read; save "
                    f"it with safe_serialization=True where you trust it, and give that folder"
                )
            return Held(path / pickles[0], _plain(_read_pickle(path / pickles[0]), path / pickles[0])), about
        return weights_in(path), about
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist or is no file; give the checkpoint file itself")
    if path.suffix == ".safetensors":
        if SHARD.fullmatch(path.name):
            raise CheckpointError(f"{path} is one of several files of a model; give the folder, with its {CONFIG}")
        return Weights.of(path), None
    return Held(path, _plain(_read_pickle(path), path)), None


def _official_names(tensors: Mapping[str, Tensor], model: str | None) -> dict[str, str]:
    """The library's names of the tensors of an official file by their keys there."""

    def clean(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        plain = {key.removeprefix("module."): tensor for key, tensor in tensors.items()}
        kind = recognised(plain)
        named = plain if kind is None else kind.clean(plain)
        for tokenizer in TOKENIZERS.values():
            inside = f"{tokenizer.name}."
            if model in tokenizer.sizes and any(key.startswith(inside) for key in named):  # it lies inside a model's
                named = {key.removeprefix(inside): t for key, t in named.items() if key.startswith(inside)}
        return named

    return own_names(tensors, clean)


def _measured(tensors: Mapping[str, Tensor], heads: int | None) -> Any:
    """The configuration that a state dict fits."""
    kind = recognised(tensors)
    if kind is None:
        raise CheckpointError(
            f"the file holds none of the known models ({', '.join(architectures())}); "
            f"its first keys: {', '.join(list(tensors)[:5])}"
        )
    try:
        return kind.infer(tensors, heads)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(
            f"the file looks like {kind.name} but is incomplete or of an odd size: {error}"
        ) from error


def read_official(path: str | Path) -> dict[str, Tensor]:
    """The state dict inside an official file, wrappers taken off and keys in the library's names."""
    path = Path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder and no file; give the checkpoint file itself")
    source, _ = _source(path)
    names = _official_names(source.shapes, None)
    return {names[key]: tensor for key, tensor in source if key in names}


def _plain(content: Any, path: Path) -> dict[str, Tensor]:
    tensors = _unwrap(content, path)
    check_tensors(tensors, path)
    return tensors


def _read_pickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return read_pickle(path)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()
        told = (line.strip() for line in reason if "GLOBAL" in line or "nsupported" in line)
        detail = next(told, "torch's safe reader knows nothing of what is in it")
        raise CheckpointError(
            f"{path} was refused: it is corrupt or holds Python objects other than weights, and nothing of it was "
            f"run ({detail}). Save the plain state dict, or a safetensors file, where you trust it."
        ) from error
    except Exception as error:  # damaged bytes make the reader fail in any way
        kind, colon, form = str(error).partition("``weights_only=True`` with ")
        if colon:  # torch goes on with advice to read it unsafely
            form = form.partition(". ")[0].partition(" passed to")[0]
            raise CheckpointError(
                f"{path} was refused: {form} cannot be read without running what is in them; save the plain state "
                f"dict, or a safetensors file, where you trust it"
            ) from error
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {kind}); it is truncated or corrupt, download it again"
        ) from error


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    for name in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
            break
    items = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(key).removeprefix("module."): value for key, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} holds no weights; expected a state dict, bare or under {', '.join(WRAPPERS)}")
    return tensors
