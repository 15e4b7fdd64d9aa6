"""What every adapter has in common: a family of one's own writes `full` and `local`."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from recap.core.attention import TORCH, Norm, Ops, evaluate_stack
from recap.core.cache import CacheLayout, ContextCache, LayerCache, Rows
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise
from recap.core.protocols import Head, Selector
from recap.core.schedule import Schedule
from recap.core.selection import ConfidenceOrder, RandomOrder


class Adapter(ABC):
    """Borrows a network's submodules and adds full and local evaluations; the network stays untouched.

    A subclass sets `config` (`Sizes` will do), `head` and `blocks`, and writes `full` and `local`; the rest follows
    for an unconditional model whose forward takes ids and returns logits, and may be written anew for others.
    `refresh_prefix=True` lets local evaluations renew the class and buffer rows too, as the authors' code
    does; by default these rows are context and stay cached.
    """

    config: Any
    head: Head
    blocks: Sequence[Any]
    knows_lengths: bool = False  # in the place of labels: texts of a batch may then differ in length
    exact_batches: bool = False  # on a CPU: an image has the same bits whatever is drawn beside it, and gains by it

    def __init__(self, net: nn.Module, *, refresh_prefix: bool = False) -> None:
        self.module = net
        self.refresh_prefix = refresh_prefix
        self.ops: Ops = TORCH

    @abstractmethod
    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        """Features of the arrival rows `wanted`, everything recomputed; fills the cache if there is one."""

    @abstractmethod
    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        """Features of the arrival rows `wanted`, only `rows` recomputed, the rest read from the cache."""

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        """An empty canvas whose rows arrive in `order` (B, N), with the embedded condition."""
        self.check_mode()
        if labels is not None:
            raise ValueError("this model is unconditional and takes no labels; say how many images instead")
        return Canvas(tokens=torch.full_like(order, self.config.mask_id), order=order)

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        """The cache that a schedule needs; without one, the largest."""
        return self.cut(self.config.cache_layout(schedule), blocks=len(self.blocks))

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        """The prediction of the network's own forward, in raster order (branches * B, N, ...)."""
        return self.module(canvas.raster())[..., : self.config.codes]

    def prediction(self, features: Tensor) -> Tensor:
        """What the network's own forward would return for these features."""
        return self.head.logits(features) if isinstance(self.head, CategoricalHead) else features

    def head_pairs(self, features: Tensor, noise: Noise) -> Iterator[tuple[Tensor, Tensor]]:
        """What a head with a network of its own predicts, beside that network's own forward."""
        return iter(())

    def at(self, num_tokens: int) -> Self:
        """The same model for runs of another length, if it knows any."""
        if num_tokens != self.num_tokens:
            raise ValueError(
                f"this model draws {self.num_tokens} tokens and no other number, but {num_tokens} are asked"
            )
        return self

    def short(self) -> Self:
        """The same model at a length at which it can be tried out quickly, if it knows several."""
        return self

    def single_layer(self) -> Self:
        """The same model cut down to one attention layer, where reuse loses nothing."""
        return self.replace(blocks=self.blocks[:1])

    def selector(self) -> Selector:
        """Where to decode first, if nothing else is said: by confidence where there is any."""
        return ConfidenceOrder() if isinstance(self.head, CategoricalHead) else RandomOrder()

    def new_cache(self, canvas: Canvas, schedule: Schedule) -> ContextCache:
        """The cache that a run over `canvas` needs, allocated once."""
        return ContextCache(self.cache_layout(schedule), canvas.branches * canvas.batch, self.device, self.dtype)

    @property
    def device(self) -> torch.device:
        return next(self._tensors()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(tensor.dtype for tensor in self._tensors() if tensor.is_floating_point())

    def _tensors(self) -> Iterator[Tensor]:
        return chain(self.module.parameters(), self.module.buffers())  # quantized layers may have buffers alone

    @property
    def num_tokens(self) -> int:
        return int(self.config.num_tokens)

    @property
    def classes(self) -> int:
        return int(getattr(self.config, "classes", 0))

    @property
    def guidable(self) -> bool:
        return self.classes > 0

    def replace(self, **changes: Any) -> Self:
        """A copy of the adapter over the same network, with other attributes."""
        other = copy.copy(self)
        for name, value in changes.items():
            if not hasattr(other, name):
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            setattr(other, name, value)
        return other

    def release(self) -> None:
        """Let go of memory that is kept for later runs: an engine's, since none is here."""
        return

    def check_mode(self) -> None:
        """Refuse to begin a run while dropout acts; the mode of the network is its owner's to change."""
        for name, part in self.module.named_modules():
            if part.training and isinstance(part, nn.Dropout) and part.p:
                raise ValueError(
                    f"{type(self.module).__name__} is in training mode, and its {name} would drop {part.p:.0%} of "
                    f"its inputs; call .eval() on it first"
                )

    def check_labels(self, labels: Tensor | None, order: Tensor) -> Tensor:
        """One integer label for each image; the range is the caller's to check, since that would synchronise."""
        if labels is None:
            raise ValueError(f"this model draws {self.classes} classes; give a label for each image")
        if labels.shape != order.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"labels are {tuple(labels.shape)} of {labels.dtype}; expected ({len(order)},) of an integer type"
            )
        return labels

    @staticmethod
    def layers(
        blocks: Iterable[Any], cache: ContextCache | None, stack: str, images: int
    ) -> Iterator[tuple[Any, LayerCache | None]]:
        """Blocks with their layer of the cache, as far as it belongs to the first `images`, or with None."""
        if cache is None:
            return ((block, None) for block in blocks)
        layers = (LayerCache(layer.k[:images], layer.v[:images]) for layer in cache.stack(stack))
        return zip(blocks, layers, strict=True)

    @staticmethod
    def cut(layout: CacheLayout, **layers: int) -> CacheLayout:
        """The layout for other numbers of layers than the configured ones."""
        return replace(layout, stacks=tuple(replace(s, layers=layers.get(s.name, s.layers)) for s in layout.stacks))

    def renewed(self, canvas: Canvas, rows: slice, prefix: int, length: int, whole: bool) -> Rows:
        """Cache rows that an evaluation of arrival `rows` renews: all that there are, or a target set's."""
        return Rows.all(length) if whole else self.target(canvas, rows, prefix, length)

    def target(self, canvas: Canvas, rows: slice, prefix: int, length: int) -> Rows:
        """Cache rows that a local evaluation of arrival `rows` renews, behind `prefix` class or buffer rows.

        Spans where the order stood still since the full evaluation; else cache_rows (branches * B, n).
        """
        if canvas.cache_rows is None:
            spans = (shifted(rows, prefix),)
            return Rows(length, (slice(0, prefix), *spans) if self.refresh_prefix else spans)
        cache_rows = canvas.cache_rows[:, rows] + prefix
        if self.refresh_prefix:
            first = torch.arange(prefix, device=cache_rows.device).expand(len(cache_rows), -1)
            cache_rows = torch.cat([first, cache_rows], dim=1)
        return Rows(length, cache_rows=cache_rows.repeat(canvas.branches, 1))


def shifted(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def filled(known: Tensor, rest: Tensor, positions: Tensor) -> Tensor:
    """Decoder input (B, M, D) of rows the first of which are `known` (B, n, D); `rest` stands for the others."""
    n = known.shape[1]
    return torch.cat([known + positions[:, :n], rest + positions[:, n:]], dim=1)


class StackAdapter(Adapter):
    """An adapter whose full evaluation is a local one of all rows, and of those before the tokens with them."""

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        return self.evaluate(canvas, cache, slice(0, canvas.size), wanted, whole=True)

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        return self.evaluate(canvas, cache, rows, wanted, whole=False)

    @abstractmethod
    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        """Features of the arrival rows `wanted`, `rows` recomputed."""


class TwoStackAdapter(StackAdapter):
    """What adapters of an encoder and a decoder have in common."""

    encoder_blocks: list[Any]
    decoder_blocks: list[Any]

    def single_layer(self) -> Self:
        # its first decoder layer
        return self.replace(encoder_blocks=[], decoder_blocks=self.decoder_blocks[:1])

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        layout = self.config.cache_layout(schedule)
        return self.cut(layout, encoder=len(self.encoder_blocks), decoder=len(self.decoder_blocks))

    def encode(self, x: Tensor, cache: ContextCache | None, rows: Rows, norm: Norm) -> Tensor:
        layers = self.layers(self.encoder_blocks, cache, "encoder", len(x))
        return evaluate_stack(layers, x, rows, norm, ops=self.ops)

    def decode(self, x: Tensor, cache: ContextCache | None, rows: Rows, norm: Norm, only: slice) -> Tensor:
        layers = self.layers(self.decoder_blocks, cache, "decoder", len(x))
        return evaluate_stack(layers, x, rows, norm, only=only, ops=self.ops)


def inside(name: str) -> Any:
    """A method or a property of a wrapper, which is that of the model inside."""
    return property(lambda wrapper: getattr(wrapper.model, name))


class ModelWrapper(Adapter):
    """A model around another one: an engine, a clock or a recorder overrides what it adds to, the rest is forwarded.

    `model` is what is inside. A wrapper may bring a `head` of its own; the network is shared and never changed.
    """

    def __init__(self, model: Adapter, *, head: Head | None = None) -> None:
        self._adopt(model)
        self.head = model.head if head is None else head

    def _adopt(self, model: Adapter) -> None:
        self.model, self.module, self.config = model, model.module, model.config
        self.refresh_prefix, self.ops = model.refresh_prefix, model.ops

    def around(self, model: Adapter) -> Self:
        """The same wrapper around another model; a head of its own stays."""
        other = copy.copy(self)
        other._adopt(model)
        if self.head is self.model.head:
            other.head = model.head
        return other

    def replace(self, **changes: Any) -> Self:
        return self.around(self.model.replace(**changes))

    def single_layer(self) -> Self:
        return self.around(self.model.single_layer())

    def at(self, num_tokens: int) -> Self:
        return self.around(self.model.at(num_tokens))

    def short(self) -> Self:
        return self.around(self.model.short())

    start = inside("start")
    new_cache = inside("new_cache")
    full = inside("full")
    local = inside("local")
    plain = inside("plain")
    prediction = inside("prediction")
    head_pairs = inside("head_pairs")
    cache_layout = inside("cache_layout")
    selector = inside("selector")
    release = inside("release")
    check_mode = inside("check_mode")
    device = inside("device")
    dtype = inside("dtype")
    num_tokens = inside("num_tokens")
    classes = inside("classes")
    guidable = inside("guidable")
    exact_batches = inside("exact_batches")
    knows_lengths = inside("knows_lengths")
