"""Measure quality against time for many settings of one model, in one run on one machine.

Settings are written like 64, 48+16 or 16+48:u=0,chain=3; the keys are u, chain, spread, renew, borrow, head, anneal,
solver, guidance, within, temp and choice. Every finished point is kept in OUT/points.jsonl; a stopped sweep goes on
where it was. Writes OUT/sweep.json, OUT/sweep.csv and the plot OUT/sweep.png.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from recap.cli import sample
from recap.cli.evaluate import add_measuring, describe, figures_of, looked_at, network, plan_of
from recap.cli.options import add_model
from recap.core.decode import check_fit
from recap.core.schedule import Schedule
from recap.evaluation.evaluate import Run, evaluate, machine, seconds_an_image
from recap.evaluation.measure import LabelPlan, Reference
from recap.evaluation.plots import Point as Mark
from recap.evaluation.plots import plot_front
from recap.evaluation.settings import Setting
from recap.evaluation.sweep import (
    PRESETS,
    Point,
    Row,
    append_point,
    preset_settings,
    read_points,
    rows_of,
    write_csv,
    write_points,
)
from recap.files import write_json
from recap.limits import read_json
from recap.memory import choose_batch
from recap.models.zoo import family_of
from recap.pipeline import Pipeline
from recap.timing import warm_up

POINTS, ABOUT = "points.jsonl", "about.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument("--settings", nargs="+", metavar="SETTING", help="settings, one argument each")
    parser.add_argument("--preset", choices=PRESETS, action="append", help="settings by name (default usual)")
    add_measuring(parser)
    parser.add_argument("--num", type=int, default=2048, help="images a point (default 2048)")
    parser.add_argument("--seed", type=int, default=0, help="of the first images (default 0)")
    parser.add_argument(
        "--repeat", nargs="*", default=[], metavar="SETTING", help="settings to run with three seeds, for the spread"
    )
    parser.add_argument(
        "--retime",
        action="store_true",
        help="measure the times of all finished points again, for a sweep that shared its machine",
    )
    parser.add_argument("--out", default="sweep", help="folder for the results (default sweep)")


def run(args: argparse.Namespace) -> int:
    pipe, shown = sample.pipeline_of(args)
    if pipe.tokenizer is None:
        raise ValueError(f"{shown} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
    settings = [] if args.retime and not (args.settings or args.preset) else settings_of(args, pipe)
    net = network(args)
    reference = Reference.load(args.stats, net, batch=looked_at(args))
    plan, labels = plan_of(args, pipe, reference)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "model": shown,
        "family": family_of(pipe.model.config).name,
        "sampling": pipe.sampling.as_dict(),
        "reference": args.stats,
        "num": args.num,
        "batch": args.batch,
        "classes": labels,
        "dtype": args.dtype,
        "engine": args.engine,
    }
    check_about(out / ABOUT, about)
    points = read_points(out / POINTS)
    finished = {(point.setting, point.seed) for point in points}
    jobs = [(setting, args.seed) for setting in settings]
    jobs += [(Setting.parse(text), args.seed + k) for k in range(3) for text in args.repeat]
    jobs = [job for job in dict.fromkeys(jobs) if (str(job[0]), job[1]) not in finished]
    print(f"{shown}: {len(finished)} points done, {len(jobs)} to go")
    for count, (setting, seed) in enumerate(jobs, start=1):
        schedule = setting.schedule(pipe.sampling, pipe.model.num_tokens)
        batch = choose_batch(pipe, schedule, args.batch, args.num, cache_limit=args.cache_limit)
        job = Run(schedule, args.num, batch, seed, plan)
        warm_up(pipe, job.schedule, *job.first(pipe))
        identity = describe(args, pipe, shown, job, labels) | {"setting": str(setting)}
        state = out / f"state-{hashlib.sha256(f'{setting} {seed}'.encode()).hexdigest()[:12]}.pt"
        done = evaluate(pipe, net, job, state=state, identity=identity)
        figures = figures_of(done.seen, reference)
        seconds = {phase: value / args.num for phase, value in done.seconds.items()}
        append_point(out / POINTS, Point(str(setting), seed, args.num, figures, seconds, job.schedule.plain))
        state.unlink(missing_ok=True)
        print(
            f"[{count}/{len(jobs)}] {setting} seed {seed}: FID {figures['fid']:.2f}, "
            f"{seconds['total']:.4g} s an image"
        )
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


def settings_of(args: argparse.Namespace, pipe: Pipeline) -> list[Setting]:
    """The settings asked for, all of them checked before anything is drawn."""
    settings = [Setting.parse(text) for text in args.settings or ()]
    presets = args.preset or ([] if settings else ["usual"])
    tokens, family = pipe.model.num_tokens, family_of(pipe.model.config).name
    for preset in presets:
        settings += preset_settings(preset, family, tokens)
    distinct: dict[Schedule, Setting] = {}  # two texts may mean the same: 32+32 and 32+32:u=0
    for setting in [*settings, *map(Setting.parse, args.repeat)]:
        try:
            schedule = setting.schedule(pipe.sampling, tokens)
            check_fit(pipe.model, schedule)
        except ValueError as error:
            raise ValueError(f"setting {setting}: {error}") from error
        if setting in settings:
            distinct.setdefault(schedule, setting)
    return list(distinct.values())


def retime(args: argparse.Namespace, pipe: Pipeline, plan: LabelPlan | None, path: Path) -> None:
    """Take the time of every finished setting again, all else staying as it is."""
    points = read_points(path)
    seconds: dict[str, dict[str, float]] = {}
    for text in tqdm(dict.fromkeys(point.setting for point in points), desc="times", unit="setting"):
        schedule = Setting.parse(text).schedule(pipe.sampling, pipe.model.num_tokens)
        batch = choose_batch(pipe, schedule, args.batch, args.num, cache_limit=args.cache_limit)
        job = Run(schedule, batch, batch, args.seed, plan)
        seconds[text] = seconds_an_image(pipe, job, batches=max(1, 256 // batch))
    write_points(path, [replace(point, seconds=seconds[point.setting]) for point in points])


def check_about(path: Path, about: dict[str, Any]) -> None:
    """Points of one folder belong together; refuse to mix them."""
    if path.is_file():
        try:
            theirs = read_json(path)
        except ValueError as error:
            raise ValueError(f"{path} is damaged ({error}); remove the folder or choose another --out") from error
        if not isinstance(theirs, dict):
            raise ValueError(f"{path} holds no object; remove the folder or choose another --out")
        if theirs != about:
            changed = sorted(key for key in {*theirs, *about} if theirs.get(key) != about.get(key))
            raise ValueError(
                f"{path.parent} holds a sweep with other {', '.join(changed)}; choose another --out, or the same ones"
            )
    else:
        write_json(path, about)


def plot(rows: list[Row], name: str, path: Path) -> None:
    """Quality against time, plain and reused."""
    points = [
        Mark(row.seconds, row.quality, row.setting, "reused" if row.reused else "plain", row.front, row.spread)
        for row in rows
    ]
    plot_front(points, path, title=name, xlabel="seconds an image", ylabel="FID")


def table(rows: list[Row]) -> str:
    """The rows for people, fastest first."""
    width = max(len(row.setting) for row in rows)
    lines = [f"{'setting':<{width}}  s/image     FID   spread  front  against plain"]
    for row in sorted(rows, key=lambda row: row.seconds):
        spread = "" if row.spread is None else f"{row.spread:.2f}"
        gains = []
        if "equal_steps" in row.against:
            gains.append(f"{row.against['equal_steps']['speedup']:.2f}x at equal steps")
        if "equal_quality" in row.against:
            gains.append(f"{row.against['equal_quality']['speedup']:.2f}x at equal FID")
        star = "*" if row.front else ""
        lines.append(
            f"{row.setting:<{width}}  {row.seconds:7.4f}  {row.quality:6.2f}  {spread:>6}  {star:>5}  "
            f"{', '.join(gains)}".rstrip()
        )
    return "\n".join(lines)
