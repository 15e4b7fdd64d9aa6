"""How fast sampling is: whole runs timed from outside, where their time goes, and how much of a device they use."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

import torch

from recap.bench.pairs import Speedup
from recap.bench.timing import TimedPipeline, generate, synchronized_time, time_callable
from recap.core.costs import run_cost
from recap.core.memory import is_out_of_memory, release
from recap.core.schedule import Schedule
from recap.engine import WARM_RUNS
from recap.pipelines.base import Asked
from recap.pipelines.base import ModelPipeline as Pipeline
from recap.pipelines.inputs import planned_labels
from recap.runs.record import versions
from recap.runs.works import Work

PARTS = ("full", "local", "head", "selection", "tokenizer")
TOKENIZER_BATCH = 32  # images that the tokenizer decodes at a time


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measurement. Seconds are for one image; `split` and the milliseconds are of a run with clocks around parts.

    `schedule` is what was asked for and `steps` what it means. `seconds_per_image` is the median of the `runs`,
    `spread` their range over it, `clocked_seconds` all of the run with clocks, without the tokenizer. Operations are
    counted by formula (`recap.core.costs`). A row that found no memory has only `error`.
    """

    model: str
    steps: Schedule
    schedule: str
    batch: int
    engine: str
    dtype: str
    device: str
    runs: tuple[float, ...] = ()
    seconds_per_image: float | None = None
    split: dict[str, float] = field(default_factory=dict)
    clocked_seconds: float | None = None
    spread: float | None = None
    setup_seconds: float | None = None
    calls: dict[str, int] = field(default_factory=dict)
    ms_full: float | None = None
    ms_local: float | None = None
    tflops: float | None = None
    share_of_ceiling: float | None = None
    peak_bytes: int | None = None  # None where the device does not count them
    against_plain: float | None = None
    error: str | None = None

    def json(self) -> dict[str, Any]:
        """The row for JSON; `error` only where there is one."""
        values = {"model": self.model, "full": self.steps.full, "local": self.steps.local, **asdict(self)}
        del values["steps"]
        if self.error is None:
            del values["error"]
        return values


def measure(
    pipe: Pipeline,
    schedule: Asked,
    batch: int,
    *,
    model: str = "",
    engine: str = "eager",
    warmup: int = 1,
    repeat: int = 3,
    seed: int = 0,
) -> BenchRow:
    """Time how `batch` images are generated together, tokens only; `model` is a name for the row.

    There are `warmup` runs that do not count, or as many as the engine needs. Memory that does not suffice is a row
    with an `error`; every other error is raised.
    """
    works, dtype = works_of(pipe, schedule, batch, seed), str(pipe.model.dtype).removeprefix("torch.")
    row = BenchRow(model, works[0].schedule, str(schedule), batch, engine, dtype, str(pipe.device))
    pipe.compile("eager")  # what another engine holds from the row before is not this row's
    ceiling(pipe.device, pipe.model.dtype)  # once, and not when a run has filled the memory
    release(pipe.device)
    try:
        return _measured(pipe, works, row, warmup, repeat)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["no memory"])[0]
    pipe.compile("eager")
    release(pipe.device)
    return replace(row, error=f"out of memory: {reason}")


def _measured(pipe: Pipeline, works: Sequence[Work], row: BenchRow, warmup: int, repeat: int) -> BenchRow:
    device, batch = pipe.device, row.batch
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = synchronized_time(device)
    pipe.compile(row.engine)
    for _ in range(max(warmup, WARM_RUNS[row.engine])):
        generate(pipe, works)
    setup = synchronized_time(device) - began
    runs = time_callable(lambda: generate(pipe, works), batch=batch, device=device, warmup=0, repeat=repeat)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

    clocked = TimedPipeline(pipe)
    watch = clocked.watch
    with watch.measure("total"):
        tokens = generate(clocked, works)
    if pipe.decoder is not None:
        pipe.decode(tokens[:TOKENIZER_BATCH], "pt")
        for part in torch.split(tokens, TOKENIZER_BATCH):
            clocked.decode(part, "pt")
    parts = PARTS if pipe.decoder is not None else PARTS[:-1]
    return replace(
        with_runs(pipe, row, runs),
        split={part: watch.seconds[part] / batch for part in parts},
        clocked_seconds=watch.seconds["total"] / batch,
        setup_seconds=setup,
        calls={part: watch.calls[part] for part in ("full", "local")},
        ms_full=1e3 * watch.seconds["full"] / watch.calls["full"],
        ms_local=1e3 * watch.seconds["local"] / watch.calls["local"] if watch.calls["local"] else None,
        peak_bytes=peak,
    )


def with_runs(pipe: Pipeline, row: BenchRow, runs: Sequence[float]) -> BenchRow:
    """The row with the seconds an image of its runs, and all that follows from them."""
    seconds = median(runs)
    tflops = run_cost(pipe.model.config, row.steps).total / seconds / 1e12
    return replace(
        row,
        runs=tuple(runs),
        seconds_per_image=seconds,
        spread=(max(runs) - min(runs)) / seconds,
        tflops=tflops,
        share_of_ceiling=tflops / ceiling(pipe.device, pipe.model.dtype),
    )


def in_turn(pipe: Pipeline, rows: Sequence[BenchRow], repeat: int, seed: int = 0) -> list[BenchRow]:
    """Rows of one engine, timed again in runs that take turns: whatever else the machine does, it does to all."""
    pipe.compile(rows[0].engine)
    works = [works_of(pipe, row.steps, row.batch, seed) for row in rows]
    taken: list[list[float]] = [[] for _ in rows]
    for _ in range(repeat):
        for row, own, seconds in zip(rows, works, taken, strict=True):
            if row.error is None:
                began = synchronized_time(pipe.device)
                generate(pipe, own)
                seconds.append((synchronized_time(pipe.device) - began) / row.batch)
    return [with_runs(pipe, row, runs) if runs else row for row, runs in zip(rows, taken, strict=True)]


def works_of(pipe: Pipeline, schedule: Asked | None, batch: int, seed: int = 0) -> list[Work]:
    """A batch of images, their labels spread over all classes, or of texts."""
    return pipe.trial(batch, schedule, seed=seed, labels=planned_labels(None, batch, None, pipe.model.classes))


@cache
def ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of a large square matrix product, the best of several: what the device can do at most.

    Measured once for a device and a precision.
    """
    size, products = (8192, 10) if device.type == "cuda" else (1024, 1)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    out, best, spent = torch.empty_like(a), math.inf, 0.0
    for _ in range(10):
        began = synchronized_time(device)
        for _ in range(products):
            torch.mm(a, b.t(), out=out)  # as a linear layer multiplies
        took = synchronized_time(device) - began
        best, spent = min(best, took), spent + took
        if spent > 2:  # seconds
            break
    return 2 * size**3 * products / best / 1e12


def compared(rows: Sequence[BenchRow]) -> list[BenchRow]:
    """The rows, those with local evaluations with what they gain over a plain row that differs in nothing else.

    It is the median over the runs of both, and nothing where these do not agree.
    """
    plain = {_kind(row): row.runs for row in rows if not row.steps.local and row.runs}

    def gain(row: BenchRow) -> float | None:
        ratios = tuple(other / own for other, own in zip(plain[_kind(row)], row.runs, strict=False))
        return Speedup(ratios).median

    return [
        replace(row, against_plain=gain(row)) if row.steps.local and row.runs and _kind(row) in plain else row
        for row in rows
    ]


def _kind(row: BenchRow) -> tuple[Any, ...]:
    """What a row and its plain counterpart have in common, as far as it takes time."""
    steps = row.steps.steps
    same = (row.model, row.batch, row.engine, row.dtype, row.device)
    return (*same, steps[0].head_steps, tuple(step.guidance for step in steps))


def machine(device: torch.device | str) -> dict[str, Any]:
    """Where figures come from: device, versions and date."""
    cuda = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads"
    return {"device": name, **versions(), "date": time.strftime("%Y-%m-%d", time.gmtime())}


def times(factor: float | None) -> str:
    """A speed-up for people, as in 1.40x; nothing where there is none."""
    return "" if factor is None else f"{factor:.2f}x"
