"""Measure quality against time for many schedules of one model, in one run on one machine.

Schedules are written like 64, 48+16 or 16+48:warmup=0,chain=3,temperature=0.9. Every finished point is kept in
OUT/sweep.json; a stopped sweep goes on where it was. Times are of runs of their own, after the images. The plot is
OUT/sweep.png.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from recap.bench.measure import machine, times
from recap.bench.schedules import LISTS, checked, listed
from recap.bench.timing import seconds_an_image
from recap.cli.evaluate import add_measuring, figures_of, plan_of, planned_works
from recap.cli.options import pipeline_of
from recap.core.options import SamplingOptions
from recap.core.presets import PRESETS
from recap.evaluation.evaluate import Reference
from recap.evaluation.features import load_inception
from recap.evaluation.plots import plot_front, require
from recap.evaluation.shards import FeatureFolder
from recap.evaluation.sweep import Point, Sweep, SweepRow
from recap.models.registry import family_of
from recap.pipelines import Pipeline
from recap.runs.ranks import Ranks
from recap.runs.record import identity
from recap.runs.sample import sample_all
from recap.view.progress import tqdm
from recap.view.say import say
from recap.view.table import aligned

TIMED = 256  # images of a run that is made for its time


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
    pipe, shown = pipeline_of(args)
    pipe.check_output("pil")
    pipe.options = pipe.options.override(SamplingOptions(args.preset))
    schedules = [] if args.retime and not (args.schedule or args.list) else schedules_of(args, pipe)
    net = load_inception(args.inception).to(args.device)
    reference = Reference.load(args.stats, net)
    plan, labels = plan_of(args, pipe, reference.statistics.classes)
    out = Path(args.out)
    path = out / "sweep.json"
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "model": shown,
        "family": family_of(pipe.model.config).name,
        "sampling": pipe.options.json(),
        "reference": args.stats,
        "classes": labels,
        **{name: getattr(args, name) for name in ("num", "batch", "dtype", "engine")},
        "machine": machine(args.device),
    }
    sweep = Sweep(about, points_of(path, about))
    points = sweep.points
    finished = {(point.schedule, point.seed) for point in points}
    jobs = [(schedule, args.seed) for schedule in schedules]
    jobs += [(SamplingOptions.from_text(text), args.seed + k) for k in range(3) for text in args.repeat]
    jobs = [job for job in dict.fromkeys(jobs) if (job[0].text, job[1]) not in finished]
    say(f"{shown}: {len(finished)} points done, {len(jobs)} to go")
    for count, (schedule, seed) in enumerate(jobs, start=1):
        works = planned_works(args, pipe, schedule, seed, plan)
        digest = hashlib.sha256(f"{schedule} {seed}".encode()).hexdigest()[:12]
        known = {**identity(pipe, works), "inception": args.inception}
        folder = FeatureFolder(out / f"features-{digest}", len(works), known, net)
        sample_all(pipe, works, folder, Ranks(), name=str(works[0].schedule))
        figures, seconds = figures_of(folder.read(), reference), seconds_an_image(pipe, works)
        points.append(Point(schedule.text, seed, args.num, figures, seconds, works[0].schedule.warmup))
        sweep.write(path)
        shutil.rmtree(folder.path)
        done = f"[{count}/{len(jobs)}] {schedule} seed {seed}"
        say(f"{done}: FID {figures['fid']:.2f}, {seconds['total']:.4g} s an image")
    if not points:
        raise ValueError(f"{path} has no points yet; nothing to plot")
    if args.retime:
        again: dict[str, dict[str, float]] = {}
        for text in tqdm(dict.fromkeys(point.schedule for point in points), desc="times", unit="schedule"):
            works = planned_works(args, pipe, SamplingOptions.from_text(text), args.seed, plan)
            again[text] = seconds_an_image(pipe, works, batches=max(1, TIMED // pipe.batch_size))
        points[:] = [replace(point, seconds=again[point.schedule]) for point in points]
    sweep.write(path)
    plot_front(sweep.rows, out / "sweep.png", shown)
    say(aligned([cells_of(row) for row in sorted(sweep.rows, key=lambda row: row.seconds)]))
    say(f"-> {path}, {out / 'sweep.png'}")
    return 0


def schedules_of(args: argparse.Namespace, pipe: Pipeline) -> list[SamplingOptions]:
    """The schedules asked for, all of them checked before anything is generated."""
    given = [SamplingOptions.from_text(text) for text in args.schedule]
    for name in args.list or ([] if given else ["usual"]):
        given += listed(name, args.model or "", pipe.options.preset or "", pipe.model.num_tokens)
    checked(pipe, map(SamplingOptions.from_text, args.repeat))
    return checked(pipe, given)


def points_of(path: Path, about: dict[str, Any]) -> list[Point]:
    """The points so far; those of one file belong together, and others are not mixed with them."""
    if not path.is_file():
        return []
    theirs = Sweep.read(path)
    changed = {key for key in {*theirs.about, *about} if theirs.about.get(key) != about.get(key)} - {"machine"}
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
