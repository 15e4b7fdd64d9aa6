"""Is the schedule that `recap tune` finds the best of all that it could have found, and are its times right?

At three budgets every candidate is measured on images other than those of the search (the grid), and timed in real
runs that take turns. Writes docs/results/tune.json and docs/results/tune.png.

    python benchmarks/tune.py --model flowers-mage --budget 0.125 0.25 0.375 --options :temperature=0.8
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import recap
from recap.bench.measure import machine
from recap.evaluation.plots import COLOURS, INK
from recap.pipelines import Pipeline
from recap.pipelines.inputs import random_labels
from recap.runs.files import write_json
from recap.tuning.latency import clocked, measured
from recap.tuning.search import Budget, Trial, candidates, tune

OUT = Path(__file__).parents[1] / "docs" / "results"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--model", default="flowers-mage")
    made.add_argument("--options", default=":temperature=0.8")
    made.add_argument("--budget", nargs="+", default=["0.125", "0.25", "0.375"])
    made.add_argument("--num", type=int, default=16, help="images of the grid, and of the search")
    return made


def main() -> None:
    args = parser().parse_args()
    pipe = recap.load(args.model)
    pipe.options, pipe.batch_size = pipe.options_for(args.options), args.num
    classes = pipe.model.classes
    labels, others = (random_labels(seed, args.num, classes) if classes else None for seed in (0, 1))
    latency = measured(pipe, labels[0] if labels else None)
    plain = latency.seconds(pipe.schedule(pipe.options.plain()))
    found = []
    for text in args.budget:
        seconds = Budget.from_text(text).seconds(plain)
        trials = candidates(pipe, latency, seconds)
        found_here = tune(pipe, trials, labels, args.num)[0]
        chosen, grid = found_here.options, []
        for trial in trials:
            works = pipe.works(others, args.num, trial.options, seed=1)
            grid.append(replace(trial, usual=found_here.usual).drawing(pipe, works))
        taken = real_seconds(pipe, trials, labels)
        best = min(grid, key=lambda trial: trial.error)
        winner = next(trial for trial in grid if trial.options == chosen)
        more, error = winner.more_than(best)
        print(
            f"{text}: of {len(grid)}, chosen {chosen} has {winner.error:.4g}, best {best.options} "
            f"{best.error:.4g}; more {more:.2g} +- {error:.2g}",
            flush=True,
        )
        points = [
            {"schedule": str(trial.options), "predicted": trial.seconds, "measured": time, "error": trial.error}
            for trial, time in zip(grid, taken, strict=True)
        ]
        about = {
            "budget": text,
            "seconds": seconds,
            "chosen": str(chosen),
            "best": str(best.options),
            "candidates": len(grid),
        }
        found.append({**about, "more": more, "error": error, "grid": points})
    about = {"model": args.model, "options": args.options, "num": args.num, "machine": machine("cpu")}
    write_json(OUT / "tune.json", {**about, "plain": plain, "budgets": found})
    plot(found, OUT / "tune.png", f"{args.model}: candidates at {len(found)} budgets, {args.num} images")


def real_seconds(pipe: Pipeline, trials: list[Trial], labels: list[int] | None, rounds: int = 3) -> list[float]:
    """Seconds an image of every schedule, the median of runs in turn."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for _ in range(rounds):
        for place, trial in enumerate(trials):
            works = pipe.works(labels[:1] if labels else None, 1, trial.options, seed=0)
            seconds[place].append(sum(clocked(pipe, works)))
    return [median(each) for each in seconds.values()]


def plot(found: list[dict[str, Any]], path: Path, title: str) -> None:
    """The errors of the grid against predicted time, and measured against predicted time."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), dpi=150, layout="constrained")
    for budget in found:
        for point in budget["grid"]:
            colour = COLOURS["reused" if "+" in point["schedule"] else "plain"]
            left.plot(point["predicted"], point["error"], "o", color=colour, markersize=4)
            right.plot(point["predicted"], point["measured"], "o", color=colour, markersize=4)
            if point["schedule"] == budget["chosen"]:
                left.plot(point["predicted"], point["error"], "o", color=INK, markersize=10, fillstyle="none")
        left.axvline(budget["seconds"], color="#dddddd", zorder=0)
    ends = [max(axis[1] for axis in (right.get_xlim(), right.get_ylim()))] * 2
    right.plot([0, ends[0]], [0, ends[1]], color=INK, linewidth=0.8)
    left.set(xlabel="predicted seconds an image", ylabel="error (nats an image)", title=title)
    right.set(xlabel="predicted seconds an image", ylabel="measured seconds an image")
    figure.savefig(path)


if __name__ == "__main__":
    main()
