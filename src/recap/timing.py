"""Where the time of a run goes, without a change to the run: the same pipeline with clocks around its parts."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Generator, Tensor

from recap.core.canvas import Draw
from recap.core.noise import Noise
from recap.core.protocols import Head
from recap.core.schedule import Schedule, Step, from_counts
from recap.pipeline import Pipeline

PHASES = ("full", "local", "head", "tokenizer", "total")
P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Seconds and number of calls of each phase; waits for the device only where that runs on its own (CUDA)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls: Counter[str] = Counter()

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time of a `with` block to a phase."""
        began = self._now()
        yield
        self.seconds[phase] += self._now() - began
        self.calls[phase] += 1

    def around(self, phase: str, call: Callable[P, R]) -> Callable[P, R]:
        """`call`, measured."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.measure(phase):
                return call(*args, **kwargs)

        return measured

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class TimedHead:
    """A head whose draws are measured."""

    def __init__(self, head: Head, watch: Stopwatch) -> None:
        self.head, self.watch = head, watch

    def draw(self, features: Tensor, step: Step, branches: int, noise: Noise) -> Draw:
        with self.watch.measure("head"):
            return self.head.draw(features, step, branches, noise)


def timed(pipe: Pipeline) -> tuple[Pipeline, Stopwatch]:
    """A copy of `pipe` over the same networks, and the watch on which its calls show; `pipe` stays as it is."""
    watch, model = Stopwatch(pipe.device), pipe.model
    other = copy.copy(pipe)
    other.model = model.replace(
        full=watch.around("full", model.full),
        local=watch.around("local", model.local),
        head=TimedHead(model.head, watch),
    )
    vars(other)["decode"] = watch.around("tokenizer", pipe.decode)
    return other, watch


def warm_up(pipe: Pipeline, schedule: Schedule, asked: Mapping[str, Any], generators: Sequence[Generator]) -> None:
    """One full and one local evaluation and a look at the tokenizer, so that no run that is timed pays for set-up.

    `asked` are the labels or the number of images of a usual batch.
    """
    tokens, last = pipe.model.num_tokens, schedule.steps[-1]
    once = from_counts(
        tokens, [1, 1, tokens - 2], full=2, local=1, plain=0, guidance=last.guidance, head_steps=(2, 2)
    )
    for canvas in islice(pipe.stream(**asked, schedule=once, generator=generators), 2):
        blank = torch.zeros_like(canvas.raster())
    pipe.decode(blank, "pt")
