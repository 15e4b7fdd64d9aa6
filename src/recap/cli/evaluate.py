"""Measure how good a model's images are, or a folder or npz of images.

Generates --num images in batches, looks at each once and compares the whole with a reference: FID always; KID,
precision and recall where the reference has images; the Inception Score where the network has logits (--inception
with the official file). A run that was stopped goes on from the features in OUT/features, and ends with the same
figures. With `torchrun --nproc-per-node G -m -- recap evaluate ...` several processes share the work.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.bench.measure import machine
from recap.bench.timing import seconds_an_image
from recap.cli.options import add_batch, add_model, add_running, add_sampling, check_device, pipeline_of
from recap.core.options import SamplingOptions
from recap.evaluation.evaluate import Reference, compare, features_of
from recap.evaluation.features import Features, load_inception
from recap.evaluation.metrics import FeatureStatistics
from recap.evaluation.shards import FeatureFolder
from recap.pipelines import Pipeline
from recap.pipelines.inputs import check_count, proportional_labels
from recap.planning.memory import choose_batch
from recap.runs.files import write_json
from recap.runs.ranks import Ranks
from recap.runs.record import identity
from recap.runs.sample import sample_all
from recap.runs.works import Work
from recap.view.say import say

FEATURES, RESULT = "features", "result.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", metavar="PATH", help="measure these images instead of a model's")
    add_measuring(parser, "evaluation")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument("--save-stats", metavar="FILE", help="keep the statistics of the images as an npz")
    add_sampling(parser)


def add_measuring(parser: argparse.ArgumentParser, out: str) -> None:
    """Arguments that `recap evaluate` and `recap sweep` share."""
    add_model(parser)
    stats = "what to compare with: npz with mu and sigma, images, or a name (default flowers128)"
    parser.add_argument("--stats", default="flowers128", metavar="PATH", help=stats)
    parser.add_argument("--inception", metavar="FILE", help="weights of the network (default: from the extra `eval`)")
    add_batch(parser, 32)
    add_running(parser)
    classes = "each class as often as any other (default: as in the reference, where it says)"
    parser.add_argument("--classes", choices=("even",), help=classes)
    parser.add_argument("--num", type=int, default=2048, help="how many images (default 2048; published: 50,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    parser.add_argument("--out", default=out, help=f"folder for the results (default {out})")


def run(args: argparse.Namespace) -> int:
    out, ranks = Path(args.out), Ranks.join()
    args.device = ranks.device(args.device)
    if args.images and ranks.world > 1:
        raise ValueError("--images is measured by one process; leave torchrun out")
    check_device(args.device)
    net = load_inception(args.inception).to(args.device)
    reference = Reference.load(args.stats, net) if ranks.first and args.stats != "none" else None
    about: dict[str, Any] = {}
    if args.images:
        about["images"] = str(args.images)
        seen = features_of(args.images, net)
    else:
        pipe, shown = pipeline_of(args)
        pipe.check_output("pil")
        if ranks.first:
            ranks.put("classes", None if reference is None else reference.statistics.classes)
        plan, labels = plan_of(args, pipe, ranks.get("classes"))
        options = SamplingOptions.from_args(args)
        works = planned_works(args, pipe, options, args.seed, plan)
        about |= {"model": shown, "classes": labels, "batch": args.batch, "processes": ranks.world}
        known = identity(pipe, works)
        about |= {"sampling": pipe.options.override(options).json(), **known}
        folder = FeatureFolder(out / FEATURES, len(works), {**known, "inception": args.inception}, net)
        name = str(works[0].schedule)
        if sample_all(pipe, works, folder, ranks, overwrite=args.overwrite, name=name) is None:
            return 0  # the first process says it all
        seen = folder.read()
        seconds = seconds_an_image(pipe, works)
        about |= {"seconds_per_image": seconds["total"], "seconds": seconds}
    if args.save_stats:
        FeatureStatistics.of(seen.features).save(args.save_stats)
    figures = {} if reference is None else figures_of(seen, reference)
    out.mkdir(parents=True, exist_ok=True)
    result = {**about, "num": len(seen), "reference": args.stats, "figures": figures}
    write_json(out / RESULT, {**result, "machine": machine(args.device)})
    shown_figures = ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "statistics only"
    say(f"{about.get('model', args.images)}: {len(seen)} images, {shown_figures} -> {out / RESULT}")
    return 0


def planned_works(
    args: argparse.Namespace, pipe: Pipeline, options: SamplingOptions, seed: int, labels: list[int] | None
) -> list[Work]:
    """The images to generate: image i has its own seed and label, whatever the batch, which is chosen here."""
    schedule = pipe.schedule(options)
    pipe.batch_size = choose_batch(pipe, schedule, args.batch, args.num, cache_limit=args.cache_limit)
    return pipe.works(labels, args.num, options, seed=seed)


def plan_of(
    args: argparse.Namespace, pipe: Pipeline, counts: Sequence[int] | None
) -> tuple[list[int] | None, str | None]:
    """Which classes are generated, and the word for it; `counts` say how often each is in the reference."""
    classes = pipe.model.classes
    check_count(args.num, "--num")
    if not classes:
        return None, None
    if counts is None or len(counts) != classes or args.classes:
        return [index % classes for index in range(args.num)], "even"
    return proportional_labels(args.num, counts), "reference"


def figures_of(seen: Features, reference: Reference) -> dict[str, float]:
    """The figures, with a word about too few images instead of a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = compare(seen, reference)
    for warning in caught:
        say(f"warning: {warning.message}")
    return figures
