"""Where the time of a run goes: clocks around a model, its head, selector and tokenizer, and no other change."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, PositionNoise
from recap.core.protocols import Head, Selector
from recap.core.steps import Step
from recap.engine import WARM_RUNS
from recap.models.adapter import Adapter, ModelWrapper
from recap.pipelines.base import ModelPipeline as Pipeline
from recap.runs.draw import begin
from recap.runs.works import Work

PHASES = ("full", "local", "head", "selection", "tokenizer", "total")


def synchronized_time(device: torch.device) -> float:
    """The time once all work is done; waits only for a device that runs on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


class Stopwatch:
    """Seconds of each phase, and how often it was called."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls: Counter[str] = Counter()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        began = synchronized_time(self.device)
        yield
        self.seconds[phase] += synchronized_time(self.device) - began
        self.calls[phase] += 1


class TimedHead:
    """A head with a clock around its draws."""

    def __init__(self, head: Head, watch: Stopwatch) -> None:
        self.head, self.watch = head, watch

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        with self.watch.measure("head"):
            return self.head.draw(features, step, branches, noise)


class TimedSelector:
    """A selector with a clock around its orders and rankings."""

    def __init__(self, selector: Selector, watch: Stopwatch) -> None:
        self.candidates = selector.candidates
        self.selector, self.watch = selector, watch

    def order(self, size: int, noise: Noise) -> Tensor:
        with self.watch.measure("selection"):
            return self.selector.order(size, noise)

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        with self.watch.measure("selection"):
            return self.selector.rank(draw, step, noise)


class TimedModel(ModelWrapper):
    """A model with a clock around its evaluations and its head."""

    def __init__(self, model: Adapter, watch: Stopwatch) -> None:
        super().__init__(model, head=TimedHead(model.head, watch))
        self.watch = watch

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        with self.watch.measure("full"):
            return self.model.full(canvas, cache, wanted)

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        with self.watch.measure("local"):
            return self.model.local(canvas, cache, rows, wanted)


class TimedPipeline(Pipeline):
    """The networks and options of another pipeline, with clocks around its parts; that pipeline stays as it is."""

    def __init__(self, pipe: Pipeline) -> None:
        vars(self).update(vars(pipe))
        self.inner = pipe
        self.watch = Stopwatch(pipe.device)
        self.model = TimedModel(pipe.model, self.watch)
        self.selector = TimedSelector(pipe.selector, self.watch)

    def decode(self, tokens: Tensor, output_type: str = "pil") -> Any:
        with self.watch.measure("tokenizer"):
            return self.inner.decode(tokens, output_type)

    def encode(self, images: Any) -> Tensor:
        return self.inner.encode(images)


def generate(pipe: Pipeline, works: Sequence[Work]) -> Tensor:
    """The tokens of images that are computed together, also where a production run takes them one by one."""
    return deque(begin(pipe, works, len(works)), maxlen=1).pop().raster()


def time_callable(
    call: Callable[[], Any], *, batch: int, device: torch.device | str, warmup: int = 1, repeat: int = 3
) -> list[float]:
    """Seconds an image of every run of a call that generates `batch` of them.

    Any call will do, also one of other code: it is timed as a whole, and waits for the device only at both ends.
    """
    if batch < 1 or repeat < 1:
        raise ValueError(f"batch is {batch} and repeat is {repeat}; both must be at least 1")
    device = torch.device(device)
    for _ in range(warmup):
        call()
    seconds = []
    for _ in range(repeat):
        began = synchronized_time(device)
        call()
        seconds.append((synchronized_time(device) - began) / batch)
    return seconds


def seconds_an_image(pipe: Pipeline, works: Sequence[Work], batches: int = 2) -> dict[str, float]:
    """Seconds an image of a batch: the median of some runs, after what does not count, and the phases of one more.

    The phases have a run of their own, because clocks around every part make a device wait for each of them.
    """
    works, clocked = works[: pipe.batch_size], TimedPipeline(pipe)
    runs = time_callable(
        lambda: pipe.decode(generate(pipe, works), "pt"),
        batch=len(works),
        device=pipe.device,
        warmup=WARM_RUNS[pipe.engine],
        repeat=batches,
    )
    clocked.decode(generate(clocked, works), "pt")
    return {phase: value / len(works) for phase, value in clocked.watch.seconds.items()} | {"total": median(runs)}
