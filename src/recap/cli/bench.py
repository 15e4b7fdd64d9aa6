"""Measure how fast models are, for schedules, batches, engines and precisions.

Seconds are those of sampling, without the tokenizer, after a warm-up: the median of --repeat whole runs. One more run
has clocks around its parts, for where the time goes. Schedules are written as for `recap sweep`; published sizes get
random weights. Prints a table for each model and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recap.bench.measure import BenchRow, ceiling, compared, machine, measure, times
from recap.bench.schedules import PAPER_MODELS, paper_schedules
from recap.cli.options import (
    DTYPES,
    add_cache_limit,
    add_model,
    batch_size,
    check_device,
    default_model,
    pipeline_of,
)
from recap.core.options import USUAL, SamplingOptions, guidance_scale
from recap.core.presets import PRESETS
from recap.engine import ENGINES, check_engine
from recap.models.registry import size_name
from recap.pipelines import Pipeline
from recap.pipelines.loading import find_model
from recap.planning.memory import MAX_BATCH, choose_batch
from recap.runs.files import write_json
from recap.view.progress import tqdm

HEAD = (
    f"{'batch':>5} {'engine':<7}{'dtype':<9}{'s/image':>9} {'spread':>6} {'gain':>6} {'full ms':>8} {'local ms':>8} "
    f"{'full':>5} {'local':>5} {'head':>5} {'select':>6} {'tokenizer':>9} {'TFLOP/s':>8} {'share':>6} {'memory':>9} "
    f"{'setup s':>7}"
)
NOTE = (
    "s/image is sampling alone; full, local, head and select are shares of a run with clocks; tokenizer is\n"
    "in s/image; gain is over plain decoding in as many sub-steps, share is of the fastest matrix product."
)


@dataclass(frozen=True, slots=True)
class Job:
    """A model, how it is sampled, and the schedules to measure on it."""

    name: str
    options: SamplingOptions
    schedules: tuple[SamplingOptions, ...]


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, action="append")
    schedule = "schedules, one argument each (default: the model's, and plain)"
    parser.add_argument("--schedule", nargs="+", default=[], metavar="T+T'", help=schedule)
    paper = "all rows of the paper's tables, and plain decoding, at their full size"
    parser.add_argument("--list", choices=("paper",), help=paper)
    parser.add_argument("--preset", choices=PRESETS, help="published setting to follow (default: the model's own)")
    parser.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START/END")
    batch = "images at a time, or auto: as many as free memory allows (default 8)"
    parser.add_argument("--batch", type=batch_size, nargs="+", default=[8], metavar="N", help=batch)
    add_cache_limit(parser)
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=["eager"], help="default eager")
    precisions = ("float32", "bfloat16")
    parser.add_argument("--dtype", choices=precisions, nargs="+", default=["float32"], help="default float32")
    warmup = "runs that do not count, or more if the engine needs them (default 1)"
    parser.add_argument("--warmup", type=int, default=1, help=warmup)
    parser.add_argument("--repeat", type=int, default=3, help="runs that do (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of the images (default 0)")
    parser.add_argument("--json", metavar="FILE", help="write the JSON to a file too")


def run(args: argparse.Namespace) -> int:
    for name, least in (("warmup", 0), ("repeat", 1)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} is {getattr(args, name)}; it must be at least {least}")
    check_device(args.device)
    for engine in args.engine:
        check_engine(engine, torch.device(args.device))
    names = args.model or (PAPER_MODELS if args.list else [default_model()])
    jobs = [job_of(name, args) for name in names]
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    points = len(args.dtype) * len(args.engine) * len(args.batch)
    rows: list[BenchRow] = []
    with tqdm(total=points * sum(len(job.schedules) for job in jobs), unit="row", disable=None) as bar:
        for job in jobs:
            own = compared(measured(args, job, bar))
            rows += own
            tqdm.write(f"{own[0].model}, on {machine(args.device)['device']}\n{table(own)}\n")
            if args.json:  # what is measured is kept, whatever comes after
                write_json(args.json, result(args, rows))
    print(NOTE)
    print(json.dumps(result(args, rows)))
    return 0


def job_of(name: str, args: argparse.Namespace) -> Job:
    """A model with some schedules, all checked; without any, its own and plain decoding in as many sub-steps."""
    pipe = Pipeline.blank(name, shrink=args.tiny)
    pipe.options = pipe.options.override(SamplingOptions(args.preset, guidance=args.guidance))
    schedules = [SamplingOptions.from_text(text) for text in args.schedule]
    schedules += paper_schedules(name if find_model(name) else size_name(name)) if args.list else []
    if not schedules:
        own = pipe.options
        full, local = USUAL if own.full is None else (own.full, own.local or 0)
        schedules = [SamplingOptions(full=full, local=local, warmup=own.warmup)]
        schedules.append(SamplingOptions(full=full + local, local=0))
    for schedule in schedules:
        try:
            pipe.schedule(schedule)
        except ValueError as error:
            raise ValueError(f"schedule {schedule} of {name}: {error}") from error
    return Job(name, pipe.options, tuple(dict.fromkeys(schedules)))


def measured(args: argparse.Namespace, job: Job, bar: Any) -> list[BenchRow]:
    """The rows of a model, in the order in which the arguments name them."""
    rows = []
    repeated = {"warmup": args.warmup, "repeat": args.repeat, "seed": args.seed}
    for dtype in dict.fromkeys(args.dtype):
        one = {"model": job.name, "dtype": dtype, "engine": "eager"}
        pipe, shown = pipeline_of(argparse.Namespace(**vars(args) | one))
        pipe.options = job.options
        for engine in dict.fromkeys(args.engine):
            for batch in dict.fromkeys(args.batch):
                for schedule in job.schedules:
                    bar.set_description(f"{shown} {schedule}, batch {batch}, {engine}, {dtype}")
                    whole, limit = pipe.schedule(schedule), args.cache_limit
                    size = choose_batch(pipe, whole, batch, MAX_BATCH, cache_limit=limit, decoded=False)
                    rows.append(measure(pipe, schedule, size, model=shown, engine=engine, **repeated))
                    bar.update()
    return rows


def result(args: argparse.Namespace, rows: Sequence[BenchRow]) -> dict[str, Any]:
    """Everything that was measured, and what with; the ceiling is in TFLOP/s."""
    return {
        "rows": [row.json() for row in rows],
        "ceiling": {dtype: ceiling(torch.device(args.device), DTYPES[dtype]) for dtype in dict.fromkeys(args.dtype)},
        "machine": machine(args.device),
    }


def table(rows: Sequence[BenchRow]) -> str:
    """The rows of a model for people."""
    width = max(len("schedule"), *(len(row.schedule) for row in rows))
    return "\n".join([f"{'schedule':<{width}} {HEAD}", *(line(row, width) for row in rows)])


def line(row: BenchRow, width: int) -> str:
    start = f"{row.schedule:<{width}} {row.batch:>5} {row.engine:<7}{row.dtype:<9}"
    if row.seconds_per_image is None or row.clocked_seconds is None:
        return f"{start} {row.error}"
    shares = {part: f"{seconds / row.clocked_seconds:.0%}" for part, seconds in row.split.items()}
    gain = times(row.against_plain)
    memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB"
    return (
        f"{start}{row.seconds_per_image:>9.4g} {row.spread:>6.1%} {gain:>6} {number(row.ms_full):>8} "
        f"{number(row.ms_local):>8} {shares['full']:>5} {shares['local']:>5} {shares['head']:>5} "
        f"{shares['selection']:>6} {number(row.split.get('tokenizer')):>9} {number(row.tflops):>8} "
        f"{row.share_of_ceiling:>6.1%} {memory:>9} {row.setup_seconds:>7.2f}"
    )


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
