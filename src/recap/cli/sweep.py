"""Measure quality against time for many schedules of one model, in one run on one machine.

Schedules are written like 64, 48+16 or 16+48:warmup=0,chain=3,temperature=0.9. Every finished point is kept in
OUT/points.jsonl; a stopped sweep goes on where it was. Times are of runs of their own, after the images. Writes
OUT/sweep.json, OUT/sweep.csv and the plot OUT/sweep.png.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from recap.bench.measure import machine, times
from recap.bench.schedules import LISTS, listed
from recap.checkpoints.safe_files import read_json
from recap.cli.evaluate import (
    add_measuring,
    evaluated_pipeline,
    feature_folder,
    figures_of,
    network,
    plan_of,
    planned_works,
    reference_of,
    seconds_of,
)
from recap.cli.options import add_model
from recap.core.options import SamplingOptions
from recap.core.presets import PRESETS
from recap.core.schedule import Schedule
from recap.evaluation.plots import Point as Mark
from recap.evaluation.plots import plot_front
from recap.evaluation.sweep import Point, Row, append_point, read_points, rows_of, write_csv, write_points
from recap.models.registry import family_of
from recap.pipelines import Pipeline
from recap.pipelines.labels import LabelPlan
from recap.runs.files import write_json
from recap.runs.ranks import Ranks
from recap.runs.sample import sample_all

POINTS, ABOUT = "points.jsonl", "about.json"
TIMED = 256  # images of a run that is made for its time


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--schedule", nargs="+", default=[], metavar="T+T'", help="schedules, one argument each")
    parser.add_argument("--list", choices=LISTS, action="append", help="schedules by name (default usual)")
    parser.add_argument("--preset", choices=PRESETS, help="published setting to follow (default: the model's own)")
    add_measuring(parser)
    parser.add_argument("--num", type=int, default=2048, help="images a point (default 2048)")
    parser.add_argument("--seed", type=int, default=0, help="of the first images (default 0)")
    parser.add_argument(
        "--repeat", nargs="*", default=[], metavar="T+T'", help="schedules to run with three seeds, for the spread"
    )
    parser.add_argument(
        "--retime",
        action="store_true",
        help="measure the times of all finished points again, for a sweep that shared its machine",
    )
    parser.add_argument("--out", default="sweep", help="folder for the results (default sweep)")


def run(args: argparse.Namespace) -> int:
    pipe, shown = evaluated_pipeline(args)
    pipe.options = pipe.options.override(SamplingOptions(args.preset))
    schedules = [] if args.retime and not (args.schedule or args.list) else schedules_of(args, pipe)
    net = network(args)
    reference = reference_of(args, net)
    plan, labels = plan_of(args, pipe, reference.classes)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "model": shown,
        "family": family_of(pipe.model.config).name,
        "sampling": pipe.options.json(),
        "reference": args.stats,
        "num": args.num,
        "batch": args.batch,
        "classes": labels,
        "dtype": args.dtype,
        "engine": args.engine,
    }
    check_about(out / ABOUT, about)
    finished = {(point.schedule, point.seed) for point in read_points(out / POINTS)}
    jobs = [(schedule, args.seed) for schedule in schedules]
    jobs += [(SamplingOptions.from_text(text), args.seed + k) for k in range(3) for text in args.repeat]
    jobs = [job for job in dict.fromkeys(jobs) if (job[0].text, job[1]) not in finished]
    print(f"{shown}: {len(finished)} points done, {len(jobs)} to go")
    for count, (schedule, seed) in enumerate(jobs, start=1):
        works = planned_works(args, pipe, schedule, seed, plan)
        digest = hashlib.sha256(f"{schedule} {seed}".encode()).hexdigest()[:12]
        folder = feature_folder(args, out / f"features-{digest}", pipe, works, net)
        sample_all(pipe, works, folder, Ranks(), name=str(works[0].schedule))
        seen = folder.read()
        figures, seconds, warmup = figures_of(seen, reference), seconds_of(pipe, works), works[0].schedule.warmup
        append_point(out / POINTS, Point(schedule.text, seed, args.num, figures, seconds, warmup))
        shutil.rmtree(folder.path)
        done = f"[{count}/{len(jobs)}] {schedule} seed {seed}"
        print(f"{done}: FID {figures['fid']:.2f}, {seconds['total']:.4g} s an image")
    if args.retime:
        retime(args, pipe, plan, out / POINTS)
    rows = rows_of(read_points(out / POINTS))
    if not rows:
        raise ValueError(f"{out / POINTS} has no points yet; nothing to plot")
    write_json(out / "sweep.json", {**about, "machine": machine(args.device), "rows": [asdict(row) for row in rows]})
    write_csv(out / "sweep.csv", rows)
    plot(rows, shown, out / "sweep.png")
    print(table(rows))
    print(f"-> {out / 'sweep.json'}, {out / 'sweep.csv'}, {out / 'sweep.png'}")
    return 0


def schedules_of(args: argparse.Namespace, pipe: Pipeline) -> list[SamplingOptions]:
    """The schedules asked for, all of them checked before anything is generated."""
    given = [SamplingOptions.from_text(text) for text in args.schedule]
    for name in args.list or ([] if given else ["usual"]):
        given += listed(name, pipe.options.preset or "", pipe.model.num_tokens)
    distinct: dict[Schedule, SamplingOptions] = {}  # two texts may mean the same: 32+32 and 32+32:warmup=0
    for options in [*given, *map(SamplingOptions.from_text, args.repeat)]:
        try:
            schedule = pipe.schedule(options)
        except ValueError as error:
            raise ValueError(f"schedule {options}: {error}") from error
        if options in given:
            distinct.setdefault(schedule, options)
    return list(distinct.values())


def retime(args: argparse.Namespace, pipe: Pipeline, plan: LabelPlan | None, path: Path) -> None:
    """Take the time of every finished schedule again, all else staying as it is."""
    points = read_points(path)
    seconds: dict[str, dict[str, float]] = {}
    for text in tqdm(dict.fromkeys(point.schedule for point in points), desc="times", unit="schedule"):
        schedule = SamplingOptions.from_text(text)
        works = planned_works(args, pipe, schedule, args.seed, plan)
        seconds[text] = seconds_of(pipe, works, batches=max(1, TIMED // pipe.batch_size))
    write_points(path, [replace(point, seconds=seconds[point.schedule]) for point in points])


def check_about(path: Path, about: dict[str, Any]) -> None:
    """Points of one folder belong together; refuse to mix them."""
    if not path.is_file():
        write_json(path, about)
        return
    try:
        theirs = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove the folder or choose another --out") from error
    if not isinstance(theirs, dict):
        raise ValueError(f"{path} holds no object; remove the folder or choose another --out")
    changed = sorted(key for key in {*theirs, *about} if theirs.get(key) != about.get(key))
    if changed:
        raise ValueError(
            f"{path.parent} holds a sweep with other {', '.join(changed)}; choose another --out, or the same ones"
        )


def plot(rows: list[Row], name: str, path: Path) -> None:
    """Quality against time, plain and reused."""
    points = [
        Mark(row.seconds, row.quality, row.schedule, "reused" if row.reused else "plain", row.front, row.spread)
        for row in rows
    ]
    plot_front(points, path, title=name, xlabel="seconds an image", ylabel="FID")


def table(rows: list[Row]) -> str:
    """The rows for people, fastest first."""
    width = max(len("schedule"), *(len(row.schedule) for row in rows))
    lines = [f"{'schedule':<{width}}  s/image     FID   spread  front  against plain"]
    for row in sorted(rows, key=lambda row: row.seconds):
        spread = "" if row.spread is None else f"{row.spread:.2f}"
        kinds = (("equal_steps", "steps"), ("equal_quality", "FID"))
        gains = [f"{times(row.against[key]['speedup'])} at equal {name}" for key, name in kinds if key in row.against]
        star = "*" if row.front else ""
        lines.append(
            f"{row.schedule:<{width}}  {row.seconds:7.4f}  {row.quality:6.2f}  {spread:>6}  {star:>5}  "
            f"{', '.join(gains)}".rstrip()
        )
    return "\n".join(lines)
