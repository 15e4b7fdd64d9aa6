"""How far two results are apart, and a network in a precision that hides no difference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def distance(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest value; for ids, the share of different ones."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.is_floating_point():
        return float((ours != theirs).float().mean())
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-12))


@contextmanager
def doubled(module: nn.Module) -> Iterator[None]:
    """A network in float64 for a while; then its own tensors are back, at the same addresses."""
    parameters = [(parameter, parameter.data) for parameter in module.parameters()]
    buffers = [(part, name, buffer) for part in module.modules() for name, buffer in part._buffers.items()]
    module.to(torch.float64)
    try:
        yield
    finally:
        for parameter, values in parameters:
            parameter.data = values
        for part, name, buffer in buffers:
            part._buffers[name] = buffer
