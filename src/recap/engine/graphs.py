"""CUDA graphs: evaluations and draws that were seen before are replayed with a single launch.

A graph is bound to addresses, so tokens, order, condition and cache of a run live in buffers that later runs of the
same shape take over. What is called for the first time runs as it is, the second time it is captured, from then on
replayed. Every graph over some buffers takes its working memory from one pool.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Generator, Tensor

from recap.core.cache import CacheLayout, ContextCache
from recap.core.canvas import Canvas
from recap.core.noise import Make, Noise, made
from recap.core.protocols import Head, Releasable
from recap.core.schedule import Schedule
from recap.models.adapter import Adapter, ModelWrapper

MAX_GRAPHS = 1024  # kept for a shape at most; the least recently used ones go first
MAX_SHAPES = 4  # that are remembered at a time
MAX_CACHES = 2  # of different sizes for a shape
LAUNCH_BOUND = 4e12  # operations of a full evaluation below which launching takes longer than computing

Compute = Callable[[], Tensor]
Captured = tuple[Callable[[], None], Tensor]  # what runs it again, and where the result will be


class CudaGraphs:
    """Captures work as CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, work: Compute) -> Captured:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result

    def release(self) -> None:
        """Begin a new pool: one whose last graph has gone takes no further ones."""
        self.pool = None


Capture = Callable[[Compute], Captured]


class GraphCache:
    """Captures calls on their second time and replays them from then on."""

    def __init__(self, capture: Capture, limit: int = MAX_GRAPHS) -> None:
        self.capture, self.limit = capture, limit
        self.seen: set[Hashable] = set()
        self.graphs: OrderedDict[Hashable, Captured] = OrderedDict()

    def __call__(self, key: Hashable, work: Compute) -> Tensor:
        """The result of `work`, which reads and writes the same memory whenever it is called with this key.

        What is returned lives until the next call with the same key.
        """
        if key not in self.graphs and key not in self.seen:
            if len(self.seen) >= 4 * self.limit:
                self.seen.clear()
            self.seen.add(key)
            return work()
        if key not in self.graphs:
            self.graphs[key] = self.capture(work)
            if len(self.graphs) > self.limit:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        replay, result = self.graphs[key]
        replay()
        return result


class StaticBuffers:
    """The memory of runs of one shape, and the graphs that work on it."""

    def __init__(self, canvas: Canvas, new_graphs: Callable[[], GraphCache]) -> None:
        self.tokens, self.order = canvas.tokens.clone(), canvas.order.clone()
        self.cache_rows = torch.zeros_like(canvas.order)
        self.condition = each_tensor(torch.clone, canvas.condition)
        self.caches: dict[CacheLayout, ContextCache] = {}
        self.graphs = new_graphs()
        self.owner: weakref.ref[Canvas] | None = None
        self.latest: Tensor | None = None  # the order that was copied last; another order is another tensor

    @property
    def free(self) -> bool:
        """Whether the run that had this memory is over."""
        canvas = None if self.owner is None else self.owner()
        return canvas is None or canvas.decoded == canvas.size

    def take(self, canvas: Canvas) -> None:
        """Give this memory to a run that begins."""
        self.tokens.copy_(canvas.tokens)
        copy_each(self.condition, canvas.condition)
        canvas.tokens, canvas.condition = self.tokens, self.condition
        self.owner, self.latest = weakref.ref(canvas), None

    def owns(self, canvas: Canvas, cache: ContextCache | None) -> bool:
        mine = self.owner is not None and self.owner() is canvas
        return mine and (cache is None or any(cache is other for other in self.caches.values()))

    def scene(self, canvas: Canvas) -> Canvas:
        """`canvas` as the graphs know it: the same values at addresses that stay."""
        if canvas.order is not self.latest:
            self.order.copy_(canvas.order)
            self.latest = canvas.order
            if canvas.cache_rows is not None:
                self.cache_rows.copy_(canvas.cache_rows)
        cache_rows = None if canvas.cache_rows is None else self.cache_rows
        return Canvas(
            self.tokens, self.order, canvas.branches, canvas.decoded, self.condition, cache_rows, canvas.known
        )


@runtime_checkable
class GraphableHead(Protocol):
    """A head whose draws can be replayed too, by calls that do work under a key."""

    def graphed(self, new_graphs: Callable[[], GraphCache]) -> Head: ...


class GraphedModel(ModelWrapper):
    """A model whose evaluations are replayed from graphs, as the draws of its head are if it can do that."""

    def __init__(self, model: Adapter, capture: Capture | None = None, launch_bound: float = LAUNCH_BOUND) -> None:
        self.capture, self.launch_bound = capture or CudaGraphs(), launch_bound
        head = model.head
        super().__init__(model, head=head.graphed(self.new_graphs) if isinstance(head, GraphableHead) else None)
        self.buffers: OrderedDict[Hashable, list[StaticBuffers]] = OrderedDict()

    def new_graphs(self) -> GraphCache:
        return GraphCache(self.capture)

    def around(self, model: Adapter) -> Self:
        return type(self)(model, self.capture, self.launch_bound)  # graphs know no other model's addresses

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        canvas = self.model.start(labels, order, branches)
        key = (canvas.tokens.shape, canvas.tokens.dtype, branches, canvas.condition is None)
        same = self.buffers.setdefault(key, [])
        self.buffers.move_to_end(key)
        while len(self.buffers) > MAX_SHAPES:
            self.buffers.popitem(last=False)
        own = next((buffers for buffers in same if buffers.free), None)
        if own is None:  # the first run of this shape, or another one is still under way
            own = StaticBuffers(canvas, self.new_graphs)
            same.append(own)
        own.take(canvas)
        return canvas

    def new_cache(self, canvas: Canvas, schedule: Schedule) -> ContextCache:
        own = self._buffers_of(canvas, None)
        layout = self.model.cache_layout(schedule)
        if own is None:
            return self.model.new_cache(canvas, schedule)
        if layout not in own.caches:
            if len(own.caches) == MAX_CACHES:  # graphs hold on to the memory of the cache they were captured with
                own.caches, own.graphs = {}, self.new_graphs()
            own.caches[layout] = self.model.new_cache(canvas, schedule)
        return own.caches[layout]

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        own = self._buffers_of(canvas, cache)
        work = canvas.branches * canvas.batch * self.config.full_flops(canvas.decoded)
        if own is None or work > self.launch_bound:
            return self.model.full(canvas, cache, wanted)
        scene, layout = own.scene(canvas), None if cache is None else cache.layout
        key = ("full", canvas.branches, canvas.known, canvas.decoded, wanted.start, wanted.stop, layout)
        return own.graphs(key, lambda: self.model.full(scene, cache, wanted))

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        own = self._buffers_of(canvas, cache)
        if own is None:
            return self.model.local(canvas, cache, rows, wanted)
        scene = own.scene(canvas)
        span = (rows.start, rows.stop, wanted.start, wanted.stop)
        key = ("local", canvas.branches, canvas.known, canvas.decoded, *span, scene.cache_rows is None, cache.layout)
        return own.graphs(key, lambda: self.model.local(scene, cache, rows, wanted))

    def release(self) -> None:
        """Forget all shapes; a run that is under way goes on without graphs."""
        self.buffers.clear()
        for part in (self.head, self.capture):
            if isinstance(part, Releasable):
                part.release()

    def _buffers_of(self, canvas: Canvas, cache: ContextCache | None) -> StaticBuffers | None:
        every = (buffers for same in self.buffers.values() for buffers in same)
        return next((buffers for buffers in every if buffers.owns(canvas, cache)), None)


class NoiseGraphs:
    """Makes the noise of runs with a launch for each draw; every number is the one that `Noise` gives."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture or CudaGraphs()
        self.release()

    def release(self) -> None:
        self.graphs = GraphCache(self.capture)
        self.memory: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # keys and first numbers by their shape
        if isinstance(self.capture, Releasable):
            self.capture.release()

    def __call__(self, streams: Sequence[Generator | int], device: torch.device) -> Noise:
        return Noise(streams, device, self.draw)

    def draw(self, keys: Tensor, first: int | Tensor, count: int, make: Make, shape: tuple[int, ...]) -> Tensor:
        """What `make` makes of the numbers."""
        first = keys.new_tensor([first]) if isinstance(first, int) else first
        size = (len(keys), *first.shape)
        if size not in self.memory:
            self.memory[size] = torch.empty_like(keys), torch.empty_like(first)
        room, start = self.memory[size]
        room.copy_(keys)
        start.copy_(first)
        drawn = self.graphs((make, shape, size), lambda: made(room, start, count, make, shape))
        return drawn.clone()  # its memory is that of the next draw of the same kind


def each_tensor(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """`value`, nothing, a tensor or a dataclass of tensors, with every tensor changed."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        return change(value)
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(
            f"a condition is a tensor or a dataclass of tensors, but this one is a {type(value).__name__}"
        )
    return replace(value, **{field.name: change(getattr(value, field.name)) for field in fields(value)})


def copy_each(into: Any, value: Any) -> None:
    """Copy the tensors of `value` over those of `into`."""
    if into is None:
        return
    if isinstance(into, Tensor):
        into.copy_(value)
    else:
        for field in fields(into):
            getattr(into, field.name).copy_(getattr(value, field.name))
