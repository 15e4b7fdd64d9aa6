"""Find a schedule for a time budget, from calibration runs on this machine and without judging any image.

Times of sub-steps are measured, candidates of many kinds are made as long as the budget allows, and their runs are
held against the model's exact predictions: what every sub-step loses by drawing its tokens together and by reading
old features. The best one is printed with the runners-up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recap import weights
from recap.checkpoints.folder import CONFIG, PUBLISHED, read_config
from recap.cli.options import (
    add_batch,
    add_labels,
    add_length,
    add_model,
    add_running,
    any_pipeline_of,
    at_length,
    labels_of,
)
from recap.core.options import SamplingOptions
from recap.pipelines.inputs import RANDOM
from recap.planning.memory import choose_batch
from recap.runs.files import write_json
from recap.tuning.latency import measured
from recap.tuning.search import FINALISTS, Budget, Trial, candidates, tune
from recap.view.say import say
from recap.view.table import aligned

NUM = 32  # images


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    about = "time for an image: a share of that of plain decoding in as many sub-steps as the model's own, or seconds"
    parser.add_argument("--budget", required=True, metavar="TIME", help=f"{about}, as in 0.5 or 0.4s")
    about = "sampling that all schedules are to share, as in :temperature=0.8 (default: the model's own)"
    parser.add_argument("--schedule", metavar=":KEY=VALUE", help=about)
    add_labels(parser, NUM)
    add_length(parser)
    add_batch(parser)
    add_running(parser)
    parser.add_argument(
        "--write", action="store_true", help="make it the model's own, in the config.json of its folder"
    )


def run(args: argparse.Namespace) -> int:
    budget = Budget.from_text(args.budget)
    folder = own_folder(args.model) if args.write else None
    pipe, shown = any_pipeline_of(args)
    pipe = at_length(pipe, args.length)
    pipe.options = pipe.options_for(SamplingOptions.from_args(args))
    if pipe.model.classes and args.labels is None:
        args.labels = RANDOM  # the first images, which all schedules draw, are then not all of the first classes
    labels = labels_of(args, pipe, NUM)
    num = (args.num or NUM) if labels is None else len(labels)
    plain = pipe.schedule(pipe.options.plain(pipe.model.num_tokens))
    pipe.batch_size = choose_batch(pipe, plain, args.batch, num, cache_limit=args.cache_limit)
    latency = measured(pipe, None if labels is None else labels[0])
    whole = latency.seconds(plain)
    seconds = budget.seconds(whole)
    trials = candidates(pipe, latency, seconds)
    say(f"{shown}: {plain} plain sub-steps take {whole:.3g} s an image; {len(trials)} schedules for {seconds:.3g} s")
    ranked = tune(pipe, trials, labels, num, seed=args.seed)
    best = ranked[0]
    shown_ones = [trial for place, trial in enumerate(ranked) if place < FINALISTS or not trial.options.local]
    say(aligned([cells_of(trial, best, whole) for trial in shown_ones]))
    say(f"-> {best.options}")
    if folder is not None:
        config = read_config(folder)
        write_json(folder / CONFIG, {**config, "sampling": pipe.options.override(best.options).json()})
        say(f"-> {folder / CONFIG}")
    return 0


def own_folder(model: str | None) -> Path:
    """The folder of a model that may be changed."""
    if (
        model is None
        or not (Path(model) / CONFIG).is_file()
        or Path(model).resolve().parent == weights.HOME.resolve()
    ):
        raise ValueError(
            f"{model or weights.default()} has no folder of its own to write to; copy it with "
            f"recap.load(NAME).save_pretrained(FOLDER) and tune that, or leave --write out"
        )
    if read_config(Path(model)).get("format") == PUBLISHED:
        raise ValueError(f"{model} stays as its authors publish it; write to one of `recap convert {model} OUT`")
    return Path(model)


def cells_of(trial: Trial, best: Trial, plain: float) -> dict[str, str]:
    more, error = trial.more_than(best)
    return {
        "schedule": str(trial.options),
        "s/image": f"{trial.seconds:.4f}",
        "of plain": f"{trial.seconds / plain:.2f}",
        "error": f"{trial.error:.3g}",
        "loss": f"{float(trial.loss.mean()):.3g}",
        "choice": f"{float(trial.choice.mean()):.3g}",
        "more than the best": "" if trial is best else f"{more:.2g} ± {error:.2g}",
    }
