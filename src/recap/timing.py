"""Where the time of a run goes, without a change to the run: the same pipeline with clocks around its parts."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch import Generator
from torch.profiler import record_function

from recap.clock import now
from recap.core.protocols import Head, Selector
from recap.core.schedule import Schedule, from_counts
from recap.memory import is_out_of_memory, release
from recap.pipeline import Pipeline

PHASES = ("full", "local", "head", "selection", "tokenizer", "total")
P = ParamSpec("P")
R = TypeVar("R")


class Around(Protocol):
    """Puts something around the calls of a phase."""

    def __call__(self, phase: str, call: Callable[P, R], /) -> Callable[P, R]: ...


class Stopwatch:
    """Seconds of each phase, and how often it was called; a selection goes with every full evaluation, uncounted."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls: Counter[str] = Counter()
        self._paused = 0.0

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the time of a `with` block to a phase."""
        began = now(self.device) - self._paused
        yield
        self.seconds[phase] += now(self.device) - self._paused - began
        self.calls[phase] += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let the time of a `with` block count nowhere."""
        began = now(self.device)
        try:
            yield
        finally:
            self._paused += now(self.device) - began

    def around(self, phase: str, call: Callable[P, R], /) -> Callable[P, R]:
        """`call`, measured; a selection without the draws of the head that it asks for."""

        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.measure(phase):
                return call(*args, **kwargs)

        def selected(*args: P.args, **kwargs: P.kwargs) -> R:
            began = now(self.device) - self.seconds["head"]
            result = call(*args, **kwargs)
            self.seconds[phase] += now(self.device) - self.seconds["head"] - began
            return result

        return selected if phase == "selection" else measured


class WrappedHead:
    """A head with something around its draws."""

    def __init__(self, head: Head, around: Around) -> None:
        self.draw = around("head", head.draw)


class WrappedSelector:
    """A selector with something around what it settles."""

    def __init__(self, selector: Selector, around: Around) -> None:
        self.order, self.candidates = selector.order, selector.candidates
        self.settle = around("selection", selector.settle)


def wrapped(pipe: Pipeline, around: Around) -> Pipeline:
    """A copy of `pipe` over the same networks with something around its parts; `pipe` stays as it is."""
    model, other = pipe.model, copy.copy(pipe)
    other.model = model.replace(
        full=around("full", model.full),
        local=around("local", model.local),
        head=WrappedHead(model.head, around),
    )
    other.selector = WrappedSelector(pipe.selector, around)
    vars(other)["decode"] = around("tokenizer", pipe.decode)
    return other


def timed(pipe: Pipeline) -> tuple[Pipeline, Stopwatch]:
    """A copy of `pipe`, and the watch on which its calls show."""
    watch = Stopwatch(pipe.device)
    return wrapped(pipe, watch.around), watch


def annotated(pipe: Pipeline) -> Pipeline:
    """A copy of `pipe` whose parts have their names in traces of torch.profiler."""

    def around(phase: str, call: Callable[P, R], /) -> Callable[P, R]:
        def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
            with record_function(phase):
                return call(*args, **kwargs)

        return recorded

    return wrapped(pipe, around)


def warm_up(pipe: Pipeline, schedule: Schedule, asked: Mapping[str, Any], generators: Sequence[Generator]) -> None:
    """One full and one local evaluation and a look at the tokenizer, so that no run that is timed pays for set-up.

    `asked` are the labels or the number of images of a usual batch.
    """
    tokens, last = pipe.model.num_tokens, schedule.steps[-1]
    once = from_counts(
        tokens, [1, 1, tokens - 2], full=2, local=1, plain=0, guidance=last.guidance, head_steps=(2, 2)
    )
    try:
        for canvas in islice(pipe.canvases(**asked, schedule=once, generator=generators), 2):
            blank = torch.zeros_like(canvas.raster())
        pipe.decode(blank, "pt")
        return
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    pipe.release()
    release(pipe.device)  # the run itself finds out how many images fit
