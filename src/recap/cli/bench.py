"""Measure how fast models draw, for settings, batches, engines and precisions.

Seconds are those of sampling, without the tokenizer, after a warm-up: the median of --repeat whole runs. One more run
has clocks around its parts, for where the time goes. Settings are written as for `recap sweep`; published sizes get
random weights. Prints a table for each model and one JSON object as the last line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from recap import weights
from recap.bench import PAPER_MODELS, Row, ceiling, compared, measure, paper_settings, random_pipeline
from recap.cli.options import (
    DTYPES,
    add_cache_limit,
    add_model,
    batch_size,
    check_batch,
    check_device,
    described,
    guidance_scale,
    named_config,
)
from recap.core.decode import check_fit
from recap.core.presets import USUAL, Sampling
from recap.core.schedule import Ramp, Schedule
from recap.engine import ENGINES, check_engine
from recap.evaluation.evaluate import machine
from recap.evaluation.settings import Setting
from recap.files import write_json
from recap.memory import MOST, choose_batch
from recap.models.zoo import Config, adapt, build
from recap.pipeline import Pipeline

PRECISIONS = ("float32", "bfloat16", "float16")
PRESETS = ("paper",)
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
    """A model, and the settings to measure on it."""

    name: str
    shown: str
    config: Config
    sampling: Sampling
    settings: tuple[Setting, ...]
    small: bool = False

    @property
    def trained(self) -> bool:
        return weights.locate(self.name) is not None

    def schedule(self, setting: Setting) -> Schedule:
        return setting.schedule(self.sampling, self.config.num_tokens)

    def pipeline(self, device: str, dtype: str, seed: int) -> Pipeline:
        """The model where it is to run; a published size has random weights."""
        folder, precision = weights.locate(self.name), DTYPES[dtype]
        if folder is not None:
            return Pipeline.from_pretrained(folder, device=device, torch_dtype=precision)
        return random_pipeline(
            self.config, setting=self.sampling.preset, device=device, dtype=precision, seed=seed, small=self.small
        )


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL", action="append")
    parser.add_argument(
        "--settings",
        nargs="+",
        metavar="SETTING",
        help="settings, one argument each (default: the model's, and plain)",
    )
    parser.add_argument(
        "--preset", choices=PRESETS, help="all rows of the paper's tables, and plain decoding, at their full size"
    )
    parser.add_argument(
        "--batch",
        type=batch_size,
        nargs="+",
        default=[8],
        metavar="N",
        help="images at a time, or auto: as many as free memory allows (default 8)",
    )
    add_cache_limit(parser)
    parser.add_argument("--engine", choices=ENGINES, nargs="+", default=["eager"], help="default eager")
    parser.add_argument("--dtype", choices=PRECISIONS, nargs="+", default=["float32"], help="default float32")
    parser.add_argument(
        "--warmup", type=int, default=1, help="runs that do not count, or more if the engine needs them (default 1)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs that do (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of the images (default 0)")
    parser.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START,END")
    parser.add_argument("--json", metavar="FILE", help="write the JSON to a file too")


def run(args: argparse.Namespace) -> int:
    check(args)
    jobs = jobs_of(args)
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
    points = len(args.dtype) * len(args.engine) * len(args.batch)
    rows: list[Row] = []
    with tqdm(total=points * sum(len(job.settings) for job in jobs), unit="row", disable=None) as bar:
        for job in jobs:
            own = compared(measured(args, job, bar))
            rows += own
            about = "" if job.trained else ", random weights"
            tqdm.write(f"{job.shown}{about}, on {machine(args.device)['device']}\n{table(own)}\n")
            if args.json:  # what is measured is kept, whatever comes after
                write_json(args.json, result(args, rows))
    print(NOTE)
    print(json.dumps(result(args, rows)))
    return 0


def check(args: argparse.Namespace) -> None:
    """Refuse numbers, devices and engines that cannot be used, before anything is loaded."""
    for name, values, least in (
        ("warmup", [args.warmup], 0),
        ("repeat", [args.repeat], 1),
    ):
        if min(values) < least:
            raise ValueError(f"--{name} is {min(values)}; it must be at least {least}")
    for batch in args.batch:
        check_batch(batch)
    check_device(args.device)
    for engine in args.engine:
        check_engine(engine, torch.device(args.device))


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """What is to be measured; every setting is checked against its model."""
    names = args.model or (PAPER_MODELS if args.preset else [default_model()])
    settings = [Setting.parse(text) for text in args.settings or ()]
    return [job_of(name, args.tiny, settings, preset=args.preset, guidance=args.guidance) for name in names]


def default_model() -> str:
    name = weights.default()
    if name is None:
        raise ValueError("no model comes with this package; name a folder or a published size with --model")
    return name


def job_of(
    name: str,
    shrink: bool,
    settings: Sequence[Setting],
    *,
    preset: str | None = None,
    guidance: float | Ramp | None = None,
) -> Job:
    """A model with some settings; without any, its own and plain decoding in as many sub-steps."""
    shown, config, sampling = described(name)
    chosen = [*settings, *(paper_settings(shown) if preset else ())]
    if shrink:
        if weights.locate(name) is not None:
            raise ValueError(f"--tiny shrinks published sizes; {name} is a folder with a size of its own")
        shown, config = named_config(name, shrink)
    if guidance is not None:
        sampling = replace(sampling, guidance=guidance)
    if not chosen:
        own = Setting(USUAL["full"], USUAL["local"])
        if sampling.full is not None:
            own = Setting(sampling.full, sampling.local, sampling.plain)
        chosen = [own, Setting(own.full + own.local)]
    job = Job(name, shown, config, sampling, tuple(dict.fromkeys(chosen)), shrink)
    model = adapt(build(config, meta=True))
    for setting in job.settings:
        try:
            check_fit(model, job.schedule(setting))
        except ValueError as error:
            raise ValueError(f"setting {setting} of {shown}: {error}") from error
    return job


def measured(args: argparse.Namespace, job: Job, bar: Any) -> list[Row]:
    """The rows of a model, in the order in which the arguments name them."""
    rows = []
    for dtype in dict.fromkeys(args.dtype):
        pipe = job.pipeline(args.device, dtype, args.seed)
        for engine in dict.fromkeys(args.engine):
            for batch in dict.fromkeys(args.batch):
                for setting in job.settings:
                    bar.set_description(f"{job.shown} {setting}, batch {batch}, {engine}, {dtype}")
                    schedule = job.schedule(setting)
                    row = measure(
                        pipe,
                        schedule,
                        choose_batch(pipe, schedule, batch, MOST, cache_limit=args.cache_limit, decoded=False),
                        model=job.shown,
                        setting=str(setting),
                        engine=engine,
                        warmup=args.warmup,
                        repeat=args.repeat,
                        seed=args.seed,
                    )
                    rows.append(row)
                    bar.update()
    return rows


def result(args: argparse.Namespace, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that was measured, and what with; the ceiling is in TFLOP/s."""
    return {
        "rows": [row.as_dict() for row in rows],
        "ceiling": {dtype: ceiling(args.device, DTYPES[dtype]) for dtype in dict.fromkeys(args.dtype)},
        "machine": machine(args.device),
    }


def table(rows: Sequence[Row]) -> str:
    """The rows of a model for people."""
    width = max(len("setting"), *(len(row.setting) for row in rows))
    return "\n".join([f"{'setting':<{width}} {HEAD}", *(line(row, width) for row in rows)])


def line(row: Row, width: int) -> str:
    start = f"{row.setting:<{width}} {row.batch:>5} {row.engine:<7}{row.dtype:<9}"
    if row.seconds_per_image is None or row.clocked_seconds is None:
        return f"{start} {row.error}"
    shares = {part: f"{seconds / row.clocked_seconds:.0%}" for part, seconds in row.split.items()}
    memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f} MiB"
    gain = "" if row.against_plain is None else f"{row.against_plain:.2f}x"
    return (
        f"{start}{row.seconds_per_image:>9.4g} {row.spread:>6.1%} {gain:>6} {number(row.ms_full):>8} "
        f"{number(row.ms_local):>8} {shares['full']:>5} {shares['local']:>5} {shares['head']:>5} "
        f"{shares['selection']:>6} {number(row.split.get('tokenizer')):>9} {number(row.tflops):>8} "
        f"{row.share_of_ceiling:>6.1%} {memory:>9} {row.setup_seconds:>7.2f}"
    )


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
