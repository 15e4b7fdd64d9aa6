"""The three seams: a model gives features, a selector says where, a head says what."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, PositionNoise
from recap.core.schedule import Schedule
from recap.core.steps import Step


@runtime_checkable
class Head(Protocol):
    """Turns features (branches * B, n, D) into values (B, n, ...); applies guidance."""

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw: ...


class MaskedModel(Protocol):
    """A masked model under grouped decoding. `rows` and `wanted` are slices of arrival rows."""

    head: Head

    @property
    def num_tokens(self) -> int: ...
    @property
    def guidable(self) -> bool: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas: ...
    def new_cache(self, canvas: Canvas, schedule: Schedule) -> ContextCache: ...
    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor: ...
    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor: ...


class Selector(Protocol):
    """Says where: the order in which positions arrive, and from which of them a sub-step may choose."""

    def order(self, size: int, noise: Noise) -> Tensor:
        """Positions (B, N) in the order in which they arrive, as far as it is known before the run."""

    def candidates(self, canvas: Canvas, target: slice, count: int) -> slice:
        """The rows among which a sub-step that commits `count` chooses; `target` has those of the group.

        It is the group's first, after the full evaluation, where nothing of the target set is decoded.
        """

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        """The candidates (B, C) of a draw, those to commit first; asked where there are more than are committed."""


@runtime_checkable
class Releasable(Protocol):
    """Keeps memory from run to run, and can let go of it."""

    def release(self) -> None: ...
