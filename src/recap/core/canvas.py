"""The partly decoded batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """Values drawn for some rows, and how sure the model was of each (None where that has no meaning)."""

    values: Tensor  # (B, n) ids or (B, n, C) latents
    confidence: Tensor | None = None  # (B, n) log-probability of the value

    def at(self, index: Tensor) -> Draw:
        """Those of the rows `index` (B, m)."""
        return Draw(take(self.values, index), None if self.confidence is None else take(self.confidence, index))


@dataclass(frozen=True, slots=True)
class Known:
    """Tokens that are there before the first evaluation, and where the rest is to be drawn.

    Both are in raster order. Values at masked positions are never looked at. Every image of a batch has as many
    masked positions as the others; which ones is its own affair.
    """

    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    masked: Tensor  # (B, N) True where a token is to be drawn
    count: int = field(init=False)  # known tokens of an image

    def __post_init__(self) -> None:
        if self.masked.dtype != torch.bool or self.tokens.shape[:2] != self.masked.shape:
            raise ValueError(
                f"masked is {tuple(self.masked.shape)} of {self.masked.dtype} for tokens {tuple(self.tokens.shape)}; "
                f"expected {tuple(self.tokens.shape[:2])} of torch.bool, True where a token is to be drawn"
            )
        drawn = sorted(set(self.masked.sum(dim=1).tolist()))
        if len(drawn) != 1:
            raise ValueError(
                f"images of one batch have {drawn[0]} to {drawn[-1]} masked tokens; decode those with equal numbers "
                f"together, and the others in batches of their own"
            )
        if not drawn[0]:
            raise ValueError("no token is masked, so there is nothing to decode; mask at least one of every image")
        object.__setattr__(self, "count", self.masked.shape[1] - drawn[0])

    def first(self, order: Tensor) -> Tensor:
        """`order` (B, N) with the known positions before all others, and otherwise as it was."""
        return take(order, take(self.masked, order).byte().argsort(dim=1, stable=True))


def take(values: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, n) of `values` (B, N) or (B, N, ...), image by image; branches repeat the index."""
    if values.shape[0] != index.shape[0]:
        index = index.repeat(values.shape[0] // index.shape[0], 1)
    index = index.reshape(*index.shape, *(1,) * (values.ndim - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))


@dataclass(slots=True, weakref_slot=True)
class Canvas:
    """Tokens in the order in which they arrive: row r of image b belongs to position `order[b, r]`.

    Rows before `decoded` are committed and never change; the rest is still masked. Because rows arrive one
    after another, context, target set and sub-steps are slices that follow from the schedule alone.
    The canvas is live: clone what you want to keep beyond the next sub-step.
    """

    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    order: Tensor  # (B, N) positions
    branches: int = 1  # 2 under guidance: models lead with 2B rows, conditional first
    decoded: int = 0
    condition: Any = None  # what the model prepared for this run
    cache_rows: Tensor | None = None  # (B, N) where rows lie in the cache, if moved since it was filled
    known: int = 0  # of the decoded ones, those that were there before the run
    finite: Tensor = field(init=False)  # (B) False once an image was given NaN or inf

    def __post_init__(self) -> None:
        self.finite = torch.ones(self.batch, dtype=torch.bool, device=self.order.device)

    @property
    def batch(self) -> int:
        return self.tokens.shape[0]

    @property
    def size(self) -> int:
        return self.tokens.shape[1]

    def commit(self, draw: Draw) -> None:
        """Write the next rows: values are (B, n) ids or (B, n, C) latents."""
        end = self.decoded + draw.values.shape[1]
        self.tokens[:, self.decoded : end] = draw.values
        self.decoded = end
        evidence = draw.values if draw.confidence is None else draw.confidence
        self.finite &= torch.isfinite(evidence).flatten(1).all(dim=1)

    @torch.inference_mode()
    def overwrite(self, tokens: Tensor) -> None:
        """Other values for the decoded rows, from `tokens` in raster order; caches hear of it when next filled."""
        if tokens.shape != self.tokens.shape:
            raise ValueError(
                f"tokens are {tuple(tokens.shape)} but this canvas has {tuple(self.tokens.shape)}; give all of them"
            )
        self.tokens[:, : self.decoded] = take(tokens.to(self.tokens.device), self.order[:, : self.decoded])

    def begin_group(self, branches: int) -> None:
        """The next evaluation computes all rows, of so many branches: where they lie, they lie in the cache."""
        self.branches, self.cache_rows = branches, None

    def promote(self, ranking: Tensor) -> None:
        """Let the next rows arrive in another order; `ranking` (B, C) indexes the first C that are masked."""
        rows = torch.arange(self.size, device=self.order.device).repeat(self.batch, 1)
        rows[:, self.decoded : self.decoded + ranking.shape[1]] = ranking + self.decoded
        self.order = self.order.gather(1, rows)
        self.cache_rows = rows if self.cache_rows is None else self.cache_rows.gather(1, rows)

    @property
    def masked(self) -> Tensor:
        """True at positions not yet decoded, in raster order (B, N)."""
        masked = torch.zeros_like(self.order, dtype=torch.bool)
        return masked.scatter(1, self.order[:, self.decoded :], True)

    def raster(self) -> Tensor:
        """The tokens in raster order; positions still masked hold what the canvas began with."""
        index = self.order.reshape(*self.order.shape, *(1,) * (self.tokens.ndim - 2)).expand_as(self.tokens)
        return torch.empty_like(self.tokens).scatter(1, index, self.tokens)
