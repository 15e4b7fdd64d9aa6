"""What is remembered between evaluations: keys and values of every attention layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a layer's cache an evaluation renews, and how many rows it attends over.

    `spans` are contiguous runs, in the order of the evaluation's inputs: nothing is gathered or scattered.
    `cache_rows` (B, M) is for target sets that are scattered over the cache because confidence chose them.
    """

    length: int
    spans: tuple[slice, ...] = ()
    cache_rows: Tensor | None = None

    @classmethod
    def all(cls, length: int) -> Rows:
        return cls(length, (slice(0, length),))


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one attention layer, one row for each token."""

    k: Tensor  # (B, L, D)
    v: Tensor  # (B, L, D)

    def write(self, k: Tensor, v: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Store `k` and `v` (B, M, D) in `rows` and return all that is to be attended over (B, length, D)."""
        if rows.cache_rows is not None:
            images = torch.arange(k.shape[0], device=k.device).unsqueeze(1)
            self.k[images, rows.cache_rows] = k
            self.v[images, rows.cache_rows] = v
        else:
            first = 0
            for span in rows.spans:
                last = first + span.stop - span.start
                self.k[:, span] = k[:, first:last]
                self.v[:, span] = v[:, first:last]
                first = last
        return self.k[:, : rows.length], self.v[:, : rows.length]


@dataclass(frozen=True, slots=True)
class StackLayout:
    """The size of one stack's cache for one image and branch."""

    name: str
    layers: int
    rows: int
    width: int

    @property
    def values(self) -> int:
        return 2 * self.layers * self.rows * self.width


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The size of a model's cache under a schedule, known before anything is allocated."""

    stacks: tuple[StackLayout, ...]
    pad: int = 0  # width of a vector kept beside the stacks (MAGE's pad vector)

    @property
    def values(self) -> int:
        """Numbers remembered for one image and branch."""
        return sum(stack.values for stack in self.stacks) + self.pad

    def nbytes(self, batch: int = 1, branches: int = 1, dtype: torch.dtype = torch.float32) -> int:
        return self.values * batch * branches * dtype.itemsize


class ContextCache:
    """The one object that a full evaluation writes and a local evaluation reads."""

    def __init__(
        self, layout: CacheLayout, rows: int, device: torch.device | str, dtype: torch.dtype = torch.float32
    ) -> None:
        """Allocate `layout` for `rows` = images times guidance branches."""
        self.layout = layout
        self._stacks = {
            stack.name: torch.empty((2, stack.layers, rows, stack.rows, stack.width), device=device, dtype=dtype)
            for stack in layout.stacks
        }
        self.pad = torch.empty((rows, 1, layout.pad), device=device, dtype=dtype)

    def stack(self, name: str) -> Iterator[LayerCache]:
        """The layers of one stack, first to last."""
        keys, values = self._stacks[name]
        return (LayerCache(k, v) for k, v in zip(keys, values, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes really allocated."""
        tensors = [*self._stacks.values(), self.pad]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
