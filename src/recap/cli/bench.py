"""Measure how fast models are, for schedules, batches, engines and precisions.

Seconds are those of sampling, without the tokenizer, after a warm-up: the median of --repeat whole runs. One more run
has clocks around its parts, for where the time goes. Schedules are written as for `recap sweep`; published sizes get
random weights. Prints a table for each model and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from recap.bench.measure import BenchRow, ceiling, compared, in_turn, machine, measure, times
from recap.bench.schedules import LISTS, PAPER_MODELS, checked, listed
from recap.cli.options import (
    DTYPES,
    add_batch,
    add_length,
    add_model,
    any_pipeline_of,
    at_length,
    check_device,
    default_model,
)
from recap.core.options import SamplingOptions, guidance_scale
from recap.core.presets import PRESETS
from recap.engine import ENGINES, check_engine, default_engine
from recap.models.registry import size_name
from recap.pipelines import blank
from recap.pipelines.loading import find_model
from recap.planning.memory import MAX_BATCH, choose_batch
from recap.runs.files import write_json
from recap.view.progress import tqdm
from recap.view.say import say, say_above
from recap.view.table import aligned

NOTE = (
    "s/image is sampling alone; full, local, head and selection are shares of a run with clocks; tokenizer is in\n"
    "s/image; gain is over plain decoding in as many sub-steps, where the runs agree on one; share is of the\n"
    "fastest matrix product."
)


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, action="append")
    schedule = "schedules, one argument each (default: the model's, and plain)"
    parser.add_argument("--schedule", nargs="+", default=[], metavar="T+T'", help=schedule)
    parser.add_argument("--list", choices=LISTS, help="schedules by name; paper: of its models, if none is named")
    parser.add_argument("--preset", choices=PRESETS, help="published setting to follow (default: the model's own)")
    parser.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START/END")
    add_length(parser)
    add_batch(parser, nargs="+", default=[8])
    parser.add_argument("--engine", choices=("auto", *ENGINES), nargs="+", default=["auto"], help="default auto")
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
    for engine in {*args.engine} - {"auto"}:
        check_engine(engine, torch.device(args.device))
    names = args.model or (PAPER_MODELS if args.list == "paper" else [default_model()])
    jobs = {name: job_of(name, args) for name in names}
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    points = len(args.dtype) * len(args.engine) * len(args.batch)
    rows: list[BenchRow] = []
    with tqdm(total=points * sum(len(schedules) for _, schedules in jobs.values()), unit="row", disable=None) as bar:
        for name, job in jobs.items():
            own = compared(measured(args, name, *job, bar))
            rows += own
            say_above(f"{own[0].model}, on {machine(args.device)['device']}\n{aligned(list(map(cells_of, own)))}\n")
            if args.json:  # what is measured is kept, whatever comes after
                write_json(args.json, result(args, rows))
    say(NOTE)
    say(json.dumps(result(args, rows)))
    return 0


def job_of(name: str, args: argparse.Namespace) -> tuple[SamplingOptions, list[SamplingOptions]]:
    """How a model is sampled, and its schedules, checked; without any, its own and plain with as many sub-steps."""
    pipe = at_length(blank(name, shrink=args.tiny), args.length)
    pipe.options = pipe.options.override(SamplingOptions(args.preset, guidance=args.guidance))
    schedules = [SamplingOptions.from_text(text) for text in args.schedule]
    if args.list:
        size = name if find_model(name) else size_name(name)
        schedules += listed(args.list, size, pipe.options.preset or "", pipe.model.num_tokens)
    if not schedules:
        own = pipe.options
        full, local = own.evaluations(pipe.model.num_tokens)
        schedules = [SamplingOptions(full=full, local=local, warmup=own.warmup)]
        schedules.append(SamplingOptions(full=full + local, local=0))
    return pipe.options, checked(pipe.schedule, schedules)


def measured(
    args: argparse.Namespace, model: str, options: SamplingOptions, schedules: Sequence[SamplingOptions], bar: Any
) -> list[BenchRow]:
    """The rows of a model, in the order in which the arguments name them."""
    rows = []
    repeated = {"warmup": args.warmup, "repeat": 1 if args.device == "cpu" else args.repeat, "seed": args.seed}
    for dtype in dict.fromkeys(args.dtype):
        one = {"model": model, "dtype": dtype, "engine": "eager"}
        pipe, shown = any_pipeline_of(argparse.Namespace(**vars(args) | one))
        pipe = at_length(pipe, args.length)
        pipe.options = options
        for engine in dict.fromkeys(default_engine(args.device) if name == "auto" else name for name in args.engine):
            for batch in dict.fromkeys(args.batch):
                own = []
                for schedule in schedules:
                    bar.set_description(f"{shown} {schedule}, batch {batch}, {engine}, {dtype}")
                    whole, limit = pipe.schedule(schedule), args.cache_limit
                    size = choose_batch(pipe, whole, batch, MAX_BATCH, cache_limit=limit, decoded=False)
                    own.append(measure(pipe, schedule, size, model=shown, engine=engine, **repeated))
                    bar.update()
                # a card is ours alone, the cores of a machine are not
                rows += in_turn(pipe, own, args.repeat, args.seed) if args.device == "cpu" else own
    return rows


def result(args: argparse.Namespace, rows: Sequence[BenchRow]) -> dict[str, Any]:
    """Everything that was measured, and what with; the ceiling is in TFLOP/s."""
    return {
        "rows": [row.json() for row in rows],
        "ceiling": {dtype: ceiling(torch.device(args.device), DTYPES[dtype]) for dtype in dict.fromkeys(args.dtype)},
        "machine": machine(args.device),
    }


def cells_of(row: BenchRow) -> dict[str, str]:
    cells = {"schedule": row.schedule, "batch": str(row.batch), "engine": row.engine, "dtype": row.dtype}
    if row.seconds_per_image is None or row.clocked_seconds is None:
        return {**cells, "error": row.error or ""}
    shares = {part: f"{row.split[part] / row.clocked_seconds:.0%}" for part in ("full", "local", "head", "selection")}
    return {
        **cells,
        "s/image": f"{row.seconds_per_image:.4g}",
        "spread": f"{row.spread:.1%}",
        "gain": times(row.against_plain),
        "full ms": number(row.ms_full),
        "local ms": number(row.ms_local),
        **shares,
        "tokenizer": number(row.split.get("tokenizer")),
        "TFLOP/s": number(row.tflops),
        "share": f"{row.share_of_ceiling:.1%}",
        "memory": "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB",
        "setup s": f"{row.setup_seconds:.2f}",
    }


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
