"""Which weights a run has, in a few characters."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from recap.core.schedule import Schedule

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(*modules: nn.Module | None) -> str:
    """Equal for equal weights, on every device.

    Of every tensor two sums of its bits taken as integers count, one of which weighs them by their places: sums of
    integers know no rounding and no order.
    """
    total = hashlib.sha256()
    for place, module in enumerate(modules):
        for name, tensor in sorted((module.state_dict() if module is not None else {}).items()):
            real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            bits = real.detach().contiguous().reshape(-1).view(INTEGERS[real.element_size()]).long()
            weighed = bits * (torch.arange(len(bits), device=bits.device) % 65521 + 1)
            sums = [int(bits.sum()), int(weighed.sum())]
            total.update(f"{place} {name} {tuple(tensor.shape)} {tensor.dtype} {sums}\n".encode())
    return total.hexdigest()[:16]


def digest(content: Any) -> str:
    """A short text that differs for contents that differ: bytes, a schedule, or anything that has a repr."""
    if isinstance(content, Schedule):
        content = content.canonical_text()
    return hashlib.sha256(content if isinstance(content, bytes) else repr(content).encode()).hexdigest()[:16]
