"""Record what a run does, operation by operation, for Perfetto or chrome://tracing.

Writes a trace with the parts of the run by name (full, local, head, selection), after a warm-up, and prints the
operations that take the most time.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from recap.bench import request
from recap.cli.bench import PRECISIONS, default_model, job_of
from recap.cli.options import add_engine, add_model, check_device
from recap.clock import now
from recap.engine import WARM_RUNS, check_engine
from recap.evaluation.settings import Setting
from recap.timing import annotated


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument("--setting", metavar="SETTING", help="as for `recap sweep` (default: the model's own)")
    parser.add_argument("--steps", type=int, metavar="N", help="stop after so many sub-steps (default: all)")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="images at a time (default 8)")
    add_engine(parser)
    parser.add_argument("--dtype", choices=PRECISIONS, default="float32", help="default float32")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of the images (default 0)")
    parser.add_argument("--rows", type=int, default=20, help="operations to print (default 20)")
    parser.add_argument(
        "--out", default="trace.json", metavar="FILE", help="the trace, .json or .json.gz (default trace.json)"
    )


def run(args: argparse.Namespace) -> int:
    for name in ("steps", "batch", "rows"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} is {value}; it must be at least 1")
    out = Path(args.out)
    if not out.name.endswith((".json", ".json.gz")):
        raise ValueError(f"--out is {args.out}; a trace is a .json or a .json.gz file")
    check_device(args.device)
    check_engine(args.engine, torch.device(args.device))
    job = job_of(args.model or default_model(), args.tiny, [Setting.parse(args.setting)] if args.setting else [])
    schedule = job.schedule(job.settings[0])
    pipe = annotated(job.pipeline(args.device, args.dtype, args.seed).compile(args.engine))
    asked = request(pipe, args.batch)

    def draw() -> None:
        for _ in islice(pipe.canvases(**asked, schedule=schedule, seed=args.seed), args.steps):
            pass
        now(pipe.device)

    cuda = pipe.device.type == "cuda"
    out.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(WARM_RUNS[args.engine]):
        draw()
    with torch.profiler.profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else ())], acc_events=True
    ) as profiler:
        draw()
    profiler.export_chrome_trace(str(out))
    by = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=by, row_limit=args.rows, max_name_column_width=50))
    steps = min(args.steps or len(schedule.steps), len(schedule.steps))
    print(f"{job.shown}: {steps} of {len(schedule.steps)} sub-steps of {schedule}, batch {args.batch} -> {out}")
    return 0
