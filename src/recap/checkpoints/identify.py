"""Which model a state dict belongs to, from its keys and shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from recap.checkpoints.safe_files import CheckpointError
from recap.models.family import Architecture
from recap.models.registry import TOKENIZERS, architectures


def recognised(tensors: Mapping[str, Tensor]) -> Architecture | None:
    """The family or tokenizer whose own key is among those of a state dict."""
    return next((kind for kind in architectures().values() if kind.key in tensors), None)


def infer(tensors: Mapping[str, Tensor], *, heads: int | None = None) -> Any:
    """The configuration that a state dict fits."""
    kind = recognised(tensors)
    if kind is None:
        raise CheckpointError(
            f"the file holds none of the known models ({', '.join(architectures())}); "
            f"its first keys: {', '.join(list(tensors)[:5]) or 'none'}"
        )
    try:
        return kind.infer(tensors, heads)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckpointError(
            f"the file looks like {kind.name} but is incomplete or of an odd size: {error}"
        ) from error


def describe(tensors: Mapping[str, Tensor]) -> str:
    """A guess for people: the published size, or the family and what it measures."""
    kind = recognised(tensors)
    if kind is None:
        return "no model that this library knows"
    try:
        config = infer(tensors)
    except CheckpointError:
        return f"a {kind.name} of unknown size"
    for name, size in kind.sizes.items():
        if config == size:
            return name
        for inside in TOKENIZERS:
            if getattr(size, inside, None) is not None and config == replace(size, **{inside: None}):
                return f"{name} without its tokenizer"
    return f"a {kind.name} of another size: {config}"
