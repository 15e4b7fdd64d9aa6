"""Deterministic weights and inputs, so that models can be checked against printed numbers, not checkpoints.

A value is a hash of its tensor's name and its flat index: the same on every machine and in every library.
"""

import math
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
UNIT = 2 * math.sqrt(3)  # scales `uniform` to a standard deviation of one
CHUNK = 1 << 22


def uniform(name: str, n: int) -> npt.NDArray[np.float64]:
    """Return `n` numbers in [-0.5, 0.5) that depend on `name` alone."""
    return _uniform(name, 0, n)


def tensor_input(name: str, shape: Sequence[int], scale: float = UNIT) -> Tensor:
    """Return the input I(name, shape), of mean about zero and, with the default scale, unit variance."""
    values = uniform(name, math.prod(shape)) * scale
    return torch.from_numpy(values.astype(np.float32)).reshape(tuple(shape))


@torch.no_grad()
def fill_(module: M, prefix: str = "") -> M:
    """Fill every floating-point tensor of the state dict in place, by its key with `prefix` before it."""
    for key, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        key, n = prefix + key, tensor.numel()
        values = np.empty(n, dtype=np.float32)
        for start in range(0, n, CHUNK):
            stop = min(start + CHUNK, n)
            u = _uniform(key, start, stop)
            if tensor.ndim >= 2:
                values[start:stop] = u * (UNIT * 0.02)
            elif key.endswith(".weight"):
                values[start:stop] = 1 + 0.2 * u
            else:
                values[start:stop] = 0.1 * u
        tensor.copy_(torch.from_numpy(values).reshape(tensor.shape))
    return module


def check_row(
    tensor: Tensor,
    n: int,
    mean: float,
    std: float,
    picks: Sequence[float],
    rtol: float = 1e-5,
    atol: float = 1e-4,
) -> None:
    """Assert that `tensor` agrees with a golden row."""
    flat = tensor.detach().double().cpu().flatten()
    assert flat.numel() == n, f"{flat.numel()} values of shape {tuple(tensor.shape)}, expected {n}"
    got = flat.mean().item(), flat.std(correction=0).item(), *flat[[0, n // 3, n // 2, n - 1]].tolist()
    names = ("mean", "std", "[0]", "[n//3]", "[n//2]", "[n-1]")
    pairs = zip(names, got, (mean, std, *picks), strict=True)
    wrong = [
        f"{name}: {value:+.7e}, expected {expected:+.7e}, off by {abs(value - expected):.1e}"
        for name, value, expected in pairs
        if not abs(value - expected) <= atol + rtol * abs(expected)
    ]
    assert not wrong, "golden row differs:\n" + "\n".join(wrong)


def _uniform(name: str, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Return the numbers `start` to `stop` of `uniform(name, ...)`; products wrap at 32 bits on purpose."""
    offset = 7919 * zlib.crc32(name.encode()) % 2**32
    h = np.arange(start, stop, dtype=np.uint32) + np.uint32(offset)
    h *= np.uint32(2654435761)
    h ^= h >> np.uint32(16)
    h *= np.uint32(2246822519)
    h ^= h >> np.uint32(13)
    return h / 2.0**32 - 0.5
