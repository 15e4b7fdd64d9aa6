"""CUDA graphs: evaluations and draws that were seen before are replayed with a single launch.

A graph is bound to addresses, so tokens, order, condition and cache of a run live in an arena that later runs of the
same shape take over. What is called for the first time runs as it is, the second time it is captured, from then on
replayed. Every graph of an arena draws its working memory from one pool.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from recap.core.cache import CacheLayout, ContextCache
from recap.core.canvas import Canvas, Draw
from recap.core.noise import Make, Noise, random_bits
from recap.core.schedule import Schedule, Step
from recap.engine.fused import FusedDiffusionHead
from recap.models.adapter import Adapter
from recap.models.mar.diffusion import updates

GRAPHS = 1024  # kept in an arena at most; the least recently used ones go first
ARENAS = 4  # shapes that are remembered at a time
CACHES = 2  # of different sizes in an arena
LAUNCH_BOUND = 4e12  # operations of a full evaluation below which launching takes longer than computing


Work = Callable[[], Tensor]
Captured = tuple[Callable[[], None], Tensor]  # what runs it again, and where the result will be


class CudaGraphs:
    """Captures work as CUDA graphs that share one pool of memory."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, work: Work) -> Captured:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result

    def release(self) -> None:
        """Begin a new pool: one whose last graph has gone takes no further ones."""
        self.pool = None


Capture = Callable[[Work], Captured]


class Recorder:
    """Captures calls on their second time and replays them from then on."""

    def __init__(self, capture: Capture, limit: int = GRAPHS) -> None:
        self.capture, self.limit = capture, limit
        self.seen: set[Hashable] = set()
        self.graphs: OrderedDict[Hashable, Captured] = OrderedDict()

    def __call__(self, key: Hashable, work: Work) -> Tensor:
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


class Arena:
    """The memory of runs of one shape, and the graphs that work on it."""

    def __init__(self, canvas: Canvas, capture: Capture) -> None:
        self.tokens, self.order = canvas.tokens.clone(), canvas.order.clone()
        self.slots = torch.zeros_like(canvas.order)
        self.condition = each_tensor(torch.clone, canvas.condition)
        self.caches: dict[CacheLayout, ContextCache] = {}
        self.record = Recorder(capture)
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
            if canvas.slots is not None:
                self.slots.copy_(canvas.slots)
        slots = None if canvas.slots is None else self.slots
        return Canvas(self.tokens, self.order, canvas.branches, canvas.decoded, self.condition, slots)


class Graphs:
    """Stands before a model's evaluations and replays what it knows; all else goes through as it is."""

    def __init__(self, model: Adapter, capture: Capture, launch_bound: float = LAUNCH_BOUND) -> None:
        self.model, self.capture = model, capture
        self.launch_bound = launch_bound
        self.arenas: OrderedDict[Hashable, list[Arena]] = OrderedDict()

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        canvas = self.model.start(labels, order, branches)
        key = (canvas.tokens.shape, canvas.tokens.dtype, branches)
        same = self.arenas.setdefault(key, [])
        self.arenas.move_to_end(key)
        while len(self.arenas) > ARENAS:
            self.arenas.popitem(last=False)
        arena = next((arena for arena in same if arena.free), None)
        if arena is None:  # the first run of this shape, or another one is still under way
            arena = Arena(canvas, self.capture)
            same.append(arena)
        arena.take(canvas)
        return canvas

    def new_cache(self, canvas: Canvas, schedule: Schedule) -> ContextCache:
        arena = self._arena(canvas, None)
        layout = self.model.cache_layout(schedule)
        if arena is None:
            return self.model.new_cache(canvas, schedule)
        if layout not in arena.caches:
            if len(arena.caches) == CACHES:  # graphs hold on to the memory of the cache that they were captured with
                arena.caches, arena.record = {}, Recorder(self.capture)
            arena.caches[layout] = self.model.new_cache(canvas, schedule)
        return arena.caches[layout]

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        arena = self._arena(canvas, cache)
        work = canvas.branches * canvas.batch * self.model.config.full_flops(canvas.decoded)
        if arena is None or work > self.launch_bound:
            return self.model.full(canvas, cache, wanted)
        scene = arena.scene(canvas)
        key = (
            "full",
            canvas.branches,
            canvas.decoded,
            wanted.start,
            wanted.stop,
            None if cache is None else cache.layout,
        )
        return arena.record(key, lambda: self.model.full(scene, cache, wanted))

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        arena = self._arena(canvas, cache)
        if arena is None:
            return self.model.local(canvas, cache, rows, wanted)
        scene = arena.scene(canvas)
        span = (rows.start, rows.stop, wanted.start, wanted.stop)
        key = ("local", canvas.branches, canvas.decoded, *span, scene.slots is None, cache.layout)
        return arena.record(key, lambda: self.model.local(scene, cache, rows, wanted))

    def release(self) -> None:
        """Forget all shapes; a run that is under way goes on without graphs."""
        self.arenas.clear()

    def _arena(self, canvas: Canvas, cache: ContextCache | None) -> Arena | None:
        every = (arena for same in self.arenas.values() for arena in same)
        return next((arena for arena in every if arena.owns(canvas, cache)), None)


class GraphedDiffusionHead:
    """A diffusion head whose whole loop is one graph for each number of rows and steps."""

    def __init__(self, head: FusedDiffusionHead, capture: Capture) -> None:
        self.head, self.capture = head, capture
        self.release()

    def release(self) -> None:
        """Forget all graphs and what they work on."""
        self.record = Recorder(self.capture)
        self.memory: dict[Hashable, tuple[Tensor, Tensor, Tensor]] = {}

    def draw(self, features: Tensor, step: Step, branches: int, noise: Noise) -> Draw:
        """As the head draws it; the number of tokens is rounded up to one of few, and the rest thrown away."""
        count, padded = features.shape[1], bucket(features.shape[1])
        random = self.head.noise(step, count, noise)  # (B, S, n, C)
        shape = (features.shape[0], padded, features.shape[2])
        key = (*shape, step.head_steps, step.solver, branches, features.dtype)
        if key not in self.memory:
            room = features.new_zeros(shape)
            draws = random.new_zeros(len(random), random.shape[1], padded, self.head.channels)
            self.memory[key] = room, draws, random.new_zeros(2)
        room, draws, guide = self.memory[key]
        room[:, :count] = features
        draws[:, :, :count] = random
        guide[0].fill_(step.guidance)
        guide[1].fill_(step.token_temperature)
        table = updates(step.head_steps, step.solver)
        drawn = self.record(key, lambda: self.head.run(room, draws, guide, branches, table))
        return Draw(drawn[:, :count])


class NoiseGraphs:
    """Makes the noise of runs with a launch for each draw; every number is the one that `Noise` gives."""

    def __init__(self, capture: Capture | None = None) -> None:
        self.capture = capture or CudaGraphs()
        self.release()

    def release(self) -> None:
        """Forget all graphs and what they work on."""
        self.record = Recorder(self.capture)
        self.memory: dict[int, tuple[Tensor, Tensor]] = {}  # keys and first number by batch size
        if isinstance(self.capture, CudaGraphs):
            self.capture.release()

    def __call__(self, generators: Sequence[Generator], device: torch.device) -> Noise:
        return GraphedNoise(self, generators, device)

    def draw(self, keys: Tensor, first: int, count: int, make: Make, shape: tuple[int, ...]) -> Tensor:
        """What `make` makes of the numbers."""
        if len(keys) not in self.memory:
            self.memory[len(keys)] = torch.empty_like(keys), keys.new_empty(1)
        room, start = self.memory[len(keys)]
        room.copy_(keys)
        start.fill_(first)
        drawn = self.record((make, shape, len(keys)), lambda: make(random_bits(room, start, count), shape))
        return drawn.clone()  # its memory is that of the next draw of the same kind


class GraphedNoise(Noise):
    """Noise of one run."""

    def __init__(self, graphs: NoiseGraphs, generators: Sequence[Generator], device: torch.device) -> None:
        super().__init__(generators, device)
        self.graphs = graphs

    def _draw(self, make: Make, shape: tuple[int, ...], count: int) -> Tensor:
        keys, first = self.reserve(count)
        return self.graphs.draw(keys, first, count, make, shape)


def bucket(count: int) -> int:
    """The number of tokens that a draw is rounded up to."""
    if count <= 12:
        return count
    step = 4 if count <= 32 else 8 if count <= 64 else 16
    return -(-count // step) * step


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


def graphed(model: Adapter, capture: Capture | None = None) -> Adapter:
    """The model with its evaluations, and a diffusion head's loop, replayed from graphs."""
    capture = capture or CudaGraphs()
    graphs = Graphs(model, capture)
    head = GraphedDiffusionHead(model.head, capture) if isinstance(model.head, FusedDiffusionHead) else model.head

    def release() -> None:
        graphs.release()
        if isinstance(head, GraphedDiffusionHead):
            head.release()
        if isinstance(capture, CudaGraphs):
            capture.release()

    return model.replace(
        start=graphs.start,
        new_cache=graphs.new_cache,
        full=graphs.full,
        local=graphs.local,
        head=head,
        release=release,
    )
