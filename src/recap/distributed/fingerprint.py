"""Which weights a run has, in a few characters."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.schedule import Schedule

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(*modules: nn.Module | None) -> str:
    """Equal for equal weights, on every device; sums of whole numbers know no rounding and no order."""
    digest = hashlib.sha256()
    for place, module in enumerate(modules):
        for name, tensor in sorted((module.state_dict() if module is not None else {}).items()):
            digest.update(f"{place} {name} {tuple(tensor.shape)} {tensor.dtype} {_sums(tensor)}\n".encode())
    return digest.hexdigest()[:16]


def short_digest(content: Any) -> str:
    """The same for anything that has a text, and for schedules."""
    text = content.spelled() if isinstance(content, Schedule) else repr(content)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sums(tensor: Tensor) -> list[int]:
    """The sum of all bits taken as integers, and one that weighs them by their places."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = plain.detach().contiguous().reshape(-1).view(WHOLE[plain.element_size()]).long()
    places = torch.arange(len(bits), device=bits.device) % 65521 + 1
    return [int(bits.sum()), int((bits * places).sum())]
