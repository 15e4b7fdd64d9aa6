"""Official checkpoint files, read without running anything that is in them."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recap.checkpoints.folder import load_strict, read_tensors
from recap.checkpoints.safe_files import CheckpointError, check_tensors, read_pickle
from recap.models.registry import SIZES, TOKENIZER_SIZES, TOKENIZERS, architectures, build, recognised, size_name

# data that training scripts leave beside the weights; their constructors do nothing but hold it
HARMLESS: list[Any] = [argparse.Namespace, np.dtype, type(np.dtype("float64")), type(np.dtype("int64"))]
WRAPPERS = ("model_ema", "model", "state_dict")  # in this order: MAR is evaluated with its averaged weights


def load_official(
    path: str | Path, *, model: str | None = None, heads: int | None = None, dtype: torch.dtype | None = None
) -> nn.Module:
    """A network from the official file of a family or tokenizer that the library knows.

    The size follows from the file; `model` names the size that is expected, and another one is an error.
    """
    tensors = read_official(path)
    for kind in TOKENIZERS.values():
        inside = f"{kind.name}."
        if model in kind.sizes and any(key.startswith(inside) for key in tensors):  # it lies inside a model's file
            tensors = {key.removeprefix(inside): t for key, t in tensors.items() if key.startswith(inside)}
    if model is not None and heads is not None:
        raise CheckpointError(f"{model} has a known number of heads; give either model or heads")
    if model is None:
        config = _measured(tensors, heads)
    else:
        config = TOKENIZER_SIZES[model] if model in TOKENIZER_SIZES else SIZES[size_name(model)]
    net = build(config, meta=True)
    load_strict(net, tensors, source=str(path))
    for name, parameter in net.named_parameters():
        if name.partition(".")[0] not in TOKENIZERS:  # a tokenizer inside keeps its precision
            parameter.data = parameter.data.to(dtype=dtype)
    return net


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
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist or is no file; give the checkpoint file itself")
    content = read_tensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    tensors = _unwrap(content, path)
    check_tensors(tensors, path)
    kind = recognised(tensors)
    return tensors if kind is None else kind.clean(tensors)


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
