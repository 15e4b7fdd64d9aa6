"""Strict loading that says what does not fit, and what the file probably is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from recap.checkpoints.errors import CheckpointError
from recap.checkpoints.identify import describe

SHOWN = 8


def load_strict(net: nn.Module, tensors: Mapping[str, Tensor], source: str) -> None:
    """Give `net` the tensors of a checkpoint; every key must be there once and have the right shape."""
    own = net.state_dict()
    missing = [key for key in own if key not in tensors]
    unexpected = [key for key in tensors if key not in own]
    wrong = [
        f"{key} {_kind(tensors[key])} instead of {_kind(own[key])}"
        for key in own
        if key in tensors and _kind(tensors[key]) != _kind(own[key])
    ]
    if missing or unexpected or wrong:
        raise CheckpointError(
            f"{source} does not fit {type(net).__name__}({getattr(net, 'config', '')})"
            + _listed("missing", missing)
            + _listed("unexpected", unexpected)
            + _listed("of another shape", wrong)
            + f"\nThe file looks like {describe(tensors)}."
        )
    net.load_state_dict(dict(tensors), strict=True, assign=True)


def _kind(tensor: Tensor) -> str:
    """What must agree: the shape, and whether it holds weights or integers."""
    return f"{tuple(tensor.shape)}" if tensor.is_floating_point() else f"{tuple(tensor.shape)} of integers"


def _listed(what: str, items: Iterable[str]) -> str:
    items = list(items)
    if not items:
        return ""
    more = f"\n  ... and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"\n{len(items)} {what}:\n  " + "\n  ".join(items[:SHOWN]) + more
