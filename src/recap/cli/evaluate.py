"""Measure how good a model's images are, or a folder, zip or npz of images.

Draws --num images in batches, looks at each once and compares the whole with a reference: FID always; KID, precision
and recall where the reference has images; the Inception Score where the network has logits (--inception with the
official file). A run that was stopped goes on from OUT/state.pt, and ends with the same figures. With `torchrun
--nproc-per-node G -m -- recap evaluate ...` several processes share the work.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.cli import sample
from recap.cli.options import add_batch, add_engine, add_model, add_schedule, check_batch, check_device
from recap.distributed.lock import FolderLock
from recap.distributed.ranks import Ranks
from recap.distributed.sampling import PATIENCE
from recap.distributed.stopping import Stopped, stoppable
from recap.evaluation.evaluate import Evaluation, Run, evaluate, machine
from recap.evaluation.inception import InceptionFeatures, load_inception
from recap.evaluation.measure import LabelPlan, Measurement, Reference, compare, label_plan, measure_images
from recap.files import write_json
from recap.memory import choose_batch
from recap.pipeline import Pipeline
from recap.timing import warm_up

STATE, RESULT = "state.pt", "result.json"
LOOKED_AT = 32  # images at a time, where nothing says how many


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument("--images", metavar="PATH", help="measure these images instead of a model's")
    add_measuring(parser)
    parser.add_argument("--num", type=int, default=2048, help="how many images (default 2048; published: 50,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    parser.add_argument("--out", default="evaluation", help="folder for the result (default evaluation)")
    parser.add_argument("--save-stats", metavar="FILE", help="keep the statistics of the images as an npz")
    add_schedule(parser)
    sample.add_sampling(parser)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Arguments that `recap evaluate` and `recap sweep` share."""
    parser.add_argument(
        "--stats",
        default="flowers128",
        metavar="PATH",
        help="what to compare with: npz with mu and sigma, images, or a name (default flowers128)",
    )
    parser.add_argument("--inception", metavar="FILE", help="weights of the network (default: from the extra `eval`)")
    add_batch(parser, LOOKED_AT)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    add_engine(parser)
    parser.add_argument(
        "--classes",
        choices=("even", "reference"),
        help="each class as often as any other, or as in the reference (default: that, where it says)",
    )


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    ranks = Ranks.join()
    args.device = ranks.device(args.device)
    if args.images and ranks.world > 1:
        raise ValueError("--images is measured by one process; leave torchrun out")
    net = network(args)
    if args.images:
        reference = Reference.load(args.stats, net, batch=looked_at(args)) if args.stats != "none" else None
        seen = measure_images(args.images, net, batch=looked_at(args))
        about: dict[str, Any] = {"images": str(args.images)}
    else:
        pipe, shown = sample.pipeline_of(args)
        if pipe.tokenizer is None:
            raise ValueError(f"{shown} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
        schedule = sample.sampling_of(args, pipe)
        reference = None
        if ranks.first:
            reference = Reference.load(args.stats, net, batch=looked_at(args)) if args.stats != "none" else None
            ranks.tell("classes", None if reference is None else reference.classes)
        plan, labels = plan_from(args, pipe, ranks.hear("classes"))
        batch = choose_batch(pipe, schedule, args.batch, args.num, cache_limit=args.cache_limit)
        job = Run(schedule, args.num, batch, args.seed, plan)
        about = describe(args, pipe, shown, job, labels)
        done = measured(args, pipe, net, job, about, ranks)
        if not ranks.first:
            return 0  # the first process says it all
        seen = done.seen
        about |= {
            "seconds": done.seconds,
            "seconds_per_image": done.seconds["total"] / args.num,
            "processes": ranks.world,
        }
    if args.save_stats:
        seen.statistics.save(args.save_stats)
    figures = {} if reference is None else figures_of(seen, reference)
    result = {**about, "num": seen.statistics.count, "reference": args.stats, "figures": figures}
    result["machine"] = machine(args.device)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULT, result)
    shown_figures = ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "statistics only"
    print(f"{about.get('model', args.images)}: {seen.statistics.count} images, {shown_figures} -> {out / RESULT}")
    return 0


def measured(
    args: argparse.Namespace, pipe: Pipeline, net: InceptionFeatures, job: Run, about: dict[str, Any], ranks: Ranks
) -> Evaluation:
    """Draw and look, in a folder that no other run uses meanwhile."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(out)
    try:
        if ranks.first:
            lock.alone(PATIENCE if ranks.launched else 0.0)
            lock.shared()
            ranks.tell("locked", True)
        elif ranks.hear("locked"):
            lock.shared()
        warm_up(pipe, job.schedule, *job.first(pipe))
        same = {
            **about,
            "batch": None,
            "device": pipe.device.type,
        }  # how many at a time, and on which GPU, is all one
        with stoppable():
            return evaluate(pipe, net, job, state=out / STATE, identity=same, ranks=ranks)
    except Stopped as stop:
        saved = f"{out / STATE} has what was saved last; run the same command again to go on"
        raise Stopped(stop.number, f"{stop}; {saved}" if ranks.first else "") from stop
    finally:
        lock.release()


def network(args: argparse.Namespace) -> InceptionFeatures:
    """The network that looks at the images, where the model is."""
    check_device(args.device)
    check_batch(args.batch)
    return load_inception(args.inception).to(args.device)


def looked_at(args: argparse.Namespace) -> int:
    """How many pictures the network looks at together, where no model draws them."""
    return LOOKED_AT if args.batch == "auto" else int(args.batch)


def plan_of(
    args: argparse.Namespace, pipe: Pipeline, reference: Reference | None
) -> tuple[LabelPlan | None, str | None]:
    """Which classes are drawn, and the word for it."""
    return plan_from(args, pipe, None if reference is None else reference.classes)


def plan_from(
    args: argparse.Namespace, pipe: Pipeline, counts: Sequence[int] | None
) -> tuple[LabelPlan | None, str | None]:
    """The same, from how often each class is in the reference."""
    classes = pipe.model.classes
    if not classes:
        return None, None
    if args.classes == "reference" and (counts is None or len(counts) != classes):
        raise ValueError(
            f"--classes reference: {args.stats} counts {len(counts) if counts else 'no'} classes and the model "
            f"draws {classes}; use --classes even"
        )
    if args.classes == "even" or counts is None or len(counts) != classes:
        return label_plan(classes), "even"
    return label_plan(classes, counts), "reference"


def describe(args: argparse.Namespace, pipe: Pipeline, shown: str, job: Run, labels: str | None) -> dict[str, Any]:
    """What is measured: everything that the images hang on."""
    schedule = job.schedule
    steps = schedule.steps
    return {
        "model": shown,
        "full": schedule.full,
        "local": schedule.local,
        "plain": schedule.plain,
        "tokens": list(schedule.sizes),
        "groups": [len(group.steps) for group in schedule],
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].token_temperature, steps[-1].token_temperature],
        "head_steps": sorted({step.head_steps for step in steps}, reverse=True),
        "sampling": pipe.sampling.as_dict(),
        "order": getattr(args, "order", None),  # a sweep has the model's own
        "num": job.num,
        "seed": job.seed,
        "batch": args.batch,  # as asked for: "auto" may mean another number when a run goes on
        "classes": labels,
        "dtype": args.dtype,
        "engine": args.engine,
        "device": args.device,
    }


def figures_of(seen: Measurement, reference: Reference) -> dict[str, float]:
    """The figures, with a word about too few images instead of a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = compare(seen, reference)
    for warning in caught:
        print(f"warning: {warning.message}")
    return figures
