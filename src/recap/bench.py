"""How fast sampling is: whole runs timed from outside, where their time goes, and how much of a device they use."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from recap.clock import now
from recap.core.costs import run_cost
from recap.core.presets import PAPER_ROWS
from recap.core.schedule import Schedule
from recap.engine import WARM_RUNS
from recap.evaluation.settings import Setting
from recap.evaluation.sweep import PLAIN
from recap.memory import is_out_of_memory, release
from recap.models.mar import MAR
from recap.models.mar.denoiser import Denoiser
from recap.models.zoo import SIZES, TOKENIZER_SIZES, Config, build, family_of, tiny_tokenizer
from recap.pipeline import Pipeline
from recap.timing import timed

PARTS = ("full", "local", "head", "selection", "tokenizer")
PAPER_MODELS = tuple(dict.fromkeys(row.model for row in PAPER_ROWS))
TOKENIZER_BATCH = 32  # images that the tokenizer decodes at a time


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. Seconds are for one image; `split` and the milliseconds are of a run with clocks around parts.

    `spread` is the range of the runs over their median, `clocked_seconds` all of the run with clocks, without the
    tokenizer. Operations are counted by formula (`recap.core.costs`). A row that found no memory has only `error`.
    """

    model: str
    schedule: Schedule
    setting: str
    batch: int
    engine: str
    dtype: str
    device: str
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

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON; `error` only where there is one."""
        schedule = self.schedule
        values = {"model": self.model, "full": schedule.full, "local": schedule.local, **asdict(self)}
        del values["schedule"]
        if self.error is None:
            del values["error"]
        return values


def measure(
    pipe: Pipeline,
    schedule: Schedule,
    batch: int,
    *,
    model: str = "",
    setting: str | None = None,
    engine: str | None = None,
    warmup: int = 1,
    repeat: int = 3,
    seed: int = 0,
) -> Row:
    """Time the drawing of `batch` images, tokens only; `model` and `setting` are names for the row.

    `engine` is what to run them with from now on (None: as the pipe does already). There are `warmup` runs that do
    not count, or as many as the engine needs to settle. Memory that does not suffice is a row with an `error`; every
    other error is raised.
    """
    for name, value, least in (("batch", batch, 1), ("warmup", warmup, 0), ("repeat", repeat, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    row = Row(
        model,
        schedule,
        str(schedule) if setting is None else setting,
        batch,
        engine or pipe.engine,
        dtype_name(pipe.model.dtype),
        str(pipe.device),
    )
    if engine is not None:
        pipe.compile("eager")  # what another engine holds from the row before is not this row's
    ceiling(pipe.device, pipe.model.dtype)  # once, and not when a run has filled the memory
    release(pipe.device)
    shown, pipe.progress = pipe.progress, False
    try:
        return _measured(pipe, row, engine, warmup, repeat, seed)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["no memory"])[0]
    finally:
        pipe.progress = shown
    if engine is not None:
        pipe.compile("eager")
    release(pipe.device)
    return replace(row, error=f"out of memory: {reason}")


def _measured(pipe: Pipeline, row: Row, engine: str | None, warmup: int, repeat: int, seed: int) -> Row:
    device, batch, asked = pipe.device, row.batch, request(pipe, row.batch)

    def draw(with_pipe: Pipeline) -> Tensor:
        return with_pipe(**asked, schedule=row.schedule, seed=seed, output_type="latent").tokens

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = now(device)
    if engine is not None:
        pipe.compile(engine)
    for _ in range(max(warmup, WARM_RUNS[row.engine])):
        draw(pipe)
    setup = now(device) - began
    seconds, spread = time_callable(lambda: draw(pipe), batch=batch, device=device, warmup=0, repeat=repeat)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None

    clocked, watch = timed(pipe)
    with watch.measure("total"):
        tokens = draw(clocked)
    if pipe.tokenizer is not None:
        pipe.decode(tokens[:TOKENIZER_BATCH], "pt")
        watch.seconds["tokenizer"] = 0.0
        for first in range(0, batch, TOKENIZER_BATCH):
            clocked.decode(tokens[first : first + TOKENIZER_BATCH], "pt")
    parts = PARTS if pipe.tokenizer is not None else PARTS[:-1]
    tflops = run_cost(pipe.model.config, row.schedule).total / seconds / 1e12
    return replace(
        row,
        seconds_per_image=seconds,
        split={part: watch.seconds[part] / batch for part in parts},
        clocked_seconds=watch.seconds["total"] / batch,
        spread=spread,
        setup_seconds=setup,
        calls={part: watch.calls[part] for part in ("full", "local")},
        ms_full=1e3 * watch.seconds["full"] / watch.calls["full"],
        ms_local=1e3 * watch.seconds["local"] / watch.calls["local"] if watch.calls["local"] else None,
        tflops=tflops,
        share_of_ceiling=tflops / ceiling(device, pipe.model.dtype),
        peak_bytes=peak,
    )


def time_callable(
    call: Callable[[], Any], *, batch: int, device: torch.device | str, warmup: int = 1, repeat: int = 3
) -> tuple[float, float]:
    """Median seconds an image of a call that draws `batch` of them, and the range of the runs over it.

    Any call will do, also one of other code: it is timed as a whole, and waits for the device only at both ends.
    """
    if batch < 1 or repeat < 1:
        raise ValueError(f"batch is {batch} and repeat is {repeat}; both must be at least 1")
    device = torch.device(device)
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeat):
        began = now(device)
        call()
        times.append(now(device) - began)
    middle = median(times)
    return middle / batch, (max(times) - min(times)) / middle


def ceiling(device: torch.device | str, dtype: torch.dtype) -> float:
    """TFLOP/s of a large square matrix product, the best of several: what the device can do at most.

    Measured once for a device and a precision.
    """
    return _ceiling(torch.empty(0, device=device).device, dtype)  # with its index


@cache
def _ceiling(where: torch.device, dtype: torch.dtype) -> float:
    size, products = (8192, 10) if where.type == "cuda" else (1024, 1)
    generator = torch.Generator(where).manual_seed(0)
    a, b = (torch.randn(size, size, device=where, generator=generator).to(dtype) for _ in range(2))
    out, best, spent = torch.empty_like(a), math.inf, 0.0
    for _ in range(10):
        began = now(where)
        for _ in range(products):
            torch.mm(a, b.t(), out=out)  # as a linear layer multiplies
        took = now(where) - began
        best, spent = min(best, took), spent + took
        if spent > 2:  # seconds
            break
    return 2 * size**3 * products / best / 1e12


def compared(rows: Sequence[Row]) -> list[Row]:
    """The rows, those with local evaluations with what they gain over plain decoding in as many sub-steps."""
    return [replace(row, against_plain=gain_over_plain(row, rows)) for row in rows]


def gain_over_plain(row: Row, rows: Sequence[Row]) -> float | None:
    """How many times faster than the plain row that differs in nothing else, if there is one."""
    if not row.schedule.local or row.seconds_per_image is None:
        return None
    for other in rows:
        if not other.schedule.local and _kind(other) == _kind(row) and other.seconds_per_image is not None:
            return other.seconds_per_image / row.seconds_per_image
    return None


def _kind(row: Row) -> tuple[Any, ...]:
    """What a row and its plain counterpart have in common, as far as it takes time."""
    steps = row.schedule.steps
    same = (row.model, row.batch, row.engine, row.dtype, row.device)
    return (*same, steps[0].head_steps, tuple(step.guidance for step in steps))


def paper_settings(model: str) -> list[Setting]:
    """Plain decoding in the counts of the paper's tables and in as many sub-steps as its rows, and these rows."""
    rows = [row for row in PAPER_ROWS if row.model == model]
    if not rows:
        raise ValueError(f"the paper has no rows of {model}; it has some of {', '.join(PAPER_MODELS)}")
    plain = {*PLAIN[family_of(SIZES[model]).name], *(row.full + row.local for row in rows)}
    return [*map(Setting, sorted(plain)), *(Setting(row.full, row.local, row.plain) for row in rows)]


def request(pipe: Pipeline, batch: int) -> dict[str, Any]:
    """What a pipeline is asked for: labels spread over all classes, or a number of images."""
    classes = pipe.model.classes
    return {"labels": [index * classes // batch for index in range(batch)]} if classes else {"num_images": batch}


def random_pipeline(
    config: Config,
    *,
    setting: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    small: bool = False,
) -> Pipeline:
    """A pipeline of this size with random weights, made where it runs; `small` is for its tokenizer."""
    kind = family_of(config).name
    tokenizer = None
    with torch.device(device):
        net = fill(build(config), seed)
        if kind != "mage":  # has its own inside
            size = TOKENIZER_SIZES["kl16" if kind == "mar" else "vqgan-f16"]
            tokenizer = fill(build(tiny_tokenizer(size) if small else size), seed)
    return Pipeline(net, tokenizer, setting=setting).to(dtype)


@torch.no_grad()
def fill(net: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights, drawn where they are: norms leave their input alone, all else is small."""
    device = next(net.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in net.named_parameters():
        if parameter.ndim == 1 and name.endswith(".weight"):
            parameter.fill_(1.0)
        else:
            parameter.normal_(std=0.02, generator=generator)
    if isinstance(net, MAR):
        _calm(net.diffloss.net)
    return net


def _calm(net: Denoiser) -> None:
    """Let a denoiser that was never trained give back most of the noise that it is given.

    The first of its steps multiplies what is left by 20,000, and float16 ends at 65,504.
    """
    inputs = net.input_proj.weight  # (w, C)
    width, channels = inputs.shape
    inputs.mul_(10)
    back = inputs.t() / inputs.std() * channels**0.5 / width
    net.final_layer.linear.weight[:channels] = back


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
