"""Measure quality against time for many schedules of one model, in one run on one machine.

Schedules are written like 64, 48+16 or 16+48:warmup=0,chain=3,temperature=0.9. Every finished point is kept in
OUT/sweep.json; a stopped sweep goes on where it was, even within a point. Times are of runs of their own: those of
images after each point, those of texts in the end, in turn. The plot is OUT/sweep.png. With
`torchrun --nproc-per-node G -m -- recap sweep ...` several processes share the drawing and the judging, and one of
them takes the times.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path
from typing import Any

from recap.bench.measure import machine, times
from recap.bench.schedules import LISTS, checked, listed
from recap.cli.measuring import Meter, add_measuring, meter_of
from recap.cli.options import any_pipeline_of
from recap.core.options import SamplingOptions
from recap.core.presets import PRESETS
from recap.evaluation import text_report
from recap.evaluation.plots import plot_front, plot_texts, require
from recap.evaluation.sweep import Point, Sweep, SweepRow
from recap.models.registry import family_of
from recap.pipelines import Pipeline, TextPipeline
from recap.runs.ranks import Ranks
from recap.runs.sample import sample_all
from recap.view.say import say
from recap.view.table import aligned

FREE = {"machine", "judge"}  # what may differ where a sweep goes on


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedule", nargs="+", default=[], metavar="T+T'", help="schedules, one argument each")
    parser.add_argument("--list", choices=LISTS, action="append", help="schedules by name (default usual)")
    parser.add_argument("--preset", choices=PRESETS, help="published setting to follow (default: the model's own)")
    add_measuring(parser, "sweep")
    repeat = "schedules to run with three seeds, for the spread"
    parser.add_argument("--repeat", nargs="*", default=[], metavar="T+T'", help=repeat)
    retime = "measure the times of all finished points again, for a sweep that shared its machine"
    parser.add_argument("--retime", action="store_true", help=retime)


def run(args: argparse.Namespace) -> int:
    require()
    ranks, out = Ranks.join(), Path(args.out)
    args.device = ranks.device(args.device)
    pipe, shown = any_pipeline_of(args)
    if isinstance(pipe, Pipeline) and args.stats == "none":
        raise ValueError("--stats none leaves nothing to compare with; name statistics or images")
    pipe.options = pipe.options.override(SamplingOptions(args.preset))
    meter = meter_of(args, pipe, ranks)
    schedules = [] if args.retime and not (args.schedule or args.list) else schedules_of(args, pipe, meter)
    path = out / "sweep.json"
    about = {
        "model": shown,
        "family": family_of(pipe.model.config).name,
        "sampling": pipe.options.json(),
        **meter.about,
        **{name: getattr(args, name) for name in ("num", "batch", "dtype", "engine")},
        "machine": machine(args.device),
    }
    asked = [(schedule.text, args.seed) for schedule in schedules]
    asked += [(SamplingOptions.from_text(text).text, args.seed + k) for k in range(3) for text in args.repeat]
    sweep = None
    if ranks.first:
        out.mkdir(parents=True, exist_ok=True)
        sweep = Sweep(about, points_of(path, about))
        finished = {(point.schedule, point.seed) for point in sweep.points}
        jobs = [job for job in dict.fromkeys(asked) if job not in finished]
        say(f"{shown}: {len(finished)} points done, {len(jobs)} to go")
        sweep.points[:] = meter.mended(sweep.points, out)
        ranks.put("jobs", jobs)
    jobs = ranks.get("jobs")
    for count, (schedule, seed) in enumerate(jobs, start=1):
        works = meter.works(SamplingOptions.from_text(schedule), seed)
        digest = hashlib.sha256(f"{schedule} {seed}".encode()).hexdigest()[:12]
        folder = meter.folder(out / f"features-{digest}", works)
        sample_all(pipe, works, folder, ranks.part(f"job/{count}"), name=str(works[0].schedule))
        if sweep is not None:
            point = meter.point(schedule, seed, works, folder)
            sweep.points.append(point)
            sweep.write(path)
            shutil.rmtree(folder.path)
            done = f"[{count}/{len(jobs)}] {schedule} seed {seed}"
            say(f"{done}: {meter.says(point.figures)}, {point.seconds['total']:.4g} s each")
    return 0 if sweep is None else finish(args, meter, sweep, out)


def finish(args: argparse.Namespace, meter: Meter, sweep: Sweep, out: Path) -> int:
    """Take times where these are wanted, and show all points."""
    path, points = out / "sweep.json", sweep.points
    if not points:
        raise ValueError(f"{path} has no points yet; nothing to plot")
    if args.retime or meter.untimed(points):
        texts = dict.fromkeys(point.schedule for point in points)
        jobs = {text: meter.works(SamplingOptions.from_text(text), args.seed) for text in texts}
        points[:] = meter.retimed(points, jobs)
    sweep.write(path)
    plot, cells = (plot_texts, text_report.cells_of) if sweep.modality == "text" else (plot_front, cells_of)
    plot(sweep.rows, out / "sweep.png", sweep.about["model"])
    say(aligned([cells(row) for row in sorted(sweep.rows, key=lambda row: row.seconds)]))
    if sweep.modality == "text":
        say(text_report.verdict(sweep.rows))
    say(f"-> {path}, {out / 'sweep.png'}")
    return 0


def schedules_of(args: argparse.Namespace, pipe: Pipeline | TextPipeline, meter: Meter) -> list[SamplingOptions]:
    """The schedules asked for, all of them checked before anything is generated."""
    given = [SamplingOptions.from_text(text) for text in args.schedule]
    tokens = meter.about.get("length", pipe.model.num_tokens)
    for name in args.list or ([] if given else ["usual"]):
        given += listed(name, args.model or "", pipe.options.preset or "", tokens)
    checked(meter.schedule, map(SamplingOptions.from_text, args.repeat))
    return checked(meter.schedule, given)


def points_of(path: Path, about: dict[str, Any]) -> list[Point]:
    """The points so far; those of one file belong together, and others are not mixed with them."""
    if not path.is_file():
        return []
    theirs = Sweep.read(path)
    changed = {key for key in {*theirs.about, *about} if theirs.about.get(key) != about.get(key)} - FREE
    if changed:
        raise ValueError(
            f"{path} is a sweep with other {', '.join(sorted(changed))}; choose another --out, or the same ones"
        )
    return theirs.points


def cells_of(row: SweepRow) -> dict[str, str]:
    kinds = (("equal_steps", "steps"), ("equal_quality", "FID"))
    gains = [f"{times(row.against[key]['speedup'])} at equal {name}" for key, name in kinds if key in row.against]
    return {
        "schedule": row.schedule,
        "s/image": f"{row.seconds:.4f}",
        "FID": f"{row.quality:.2f}",
        "spread": "" if row.spread is None else f"{row.spread:.2f}",
        "front": "*" if row.front else "",
        "against plain": ", ".join(gains),
    }
