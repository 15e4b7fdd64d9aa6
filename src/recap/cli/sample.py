"""Generate images with a model.

MODEL is a folder, a model that comes with the package (see `recap models`), or a published size, which is then
built with random weights: that shows how sampling runs and how long it takes, but no picture of anything.
Image i of a seed is the same for any batch size and number of processes: with `torchrun --nproc-per-node G -m --
recap sample ...` several share the work. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from recap.bench.timing import timed
from recap.cli.options import (
    add_batch,
    add_labels,
    add_model,
    add_preview,
    add_running,
    add_sampling,
    check_batch,
    labels_of,
    options_of,
    pipeline_of,
)
from recap.core.noise import image_seed
from recap.pipelines import Pipeline
from recap.planning.memory import choose_batch
from recap.runs.draw import StepObserver, draw
from recap.runs.files import atomic_write, write_json
from recap.runs.folder import ImageFolder
from recap.runs.ranks import Ranks
from recap.runs.record import identity, record
from recap.runs.sample import failure, sample_all
from recap.runs.works import Failed, Work
from recap.view.preview import previews
from recap.view.sheet import MAX_COLUMNS, Row, comparison, grid


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_labels(parser, 4)
    parser.add_argument("--per-class", type=int, metavar="N", help="N images of every class, instead of --labels")
    add_batch(parser)
    add_running(parser)
    parser.add_argument("--out", default="samples", help="folder for the images (default samples)")
    parser.add_argument("--pack", choices=("npz",), help="write all images into one file too, for other FID tools")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument(
        "--compare", action="store_true", help="generate the same without reuse in as many steps, side by side"
    )
    parser.add_argument("--timing", action="store_true", help="say where the time goes; makes a GPU wait")
    add_preview(parser)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    check_batch(args.batch)
    ranks = Ranks.join()
    if args.compare and ranks.world > 1:
        raise ValueError("--compare measures one process; leave it out, or run without torchrun")
    args.device = ranks.device(args.device)
    pipe, shown = pipeline_of(args)
    pipe.check_output("pil")
    pipe.progress = False
    options = pipe.options_for(options_of(args))
    labels = labels_of(args, pipe, 4)
    works = pipe.works(labels, args.num or 4 if labels is None else None, options, seed=args.seed)
    schedule, num = works[0].schedule, len(works)
    pipe.batch_size = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    if args.compare and not schedule.local:
        raise ValueError(f"--compare has nothing to compare: {schedule} evaluations are plain decoding; add --local")
    known = identity(pipe, works)
    folder = ImageFolder(args.out, num, known)
    names = None if labels is None else [pipe.name_of(label) for label in labels]
    pipe, watch = timed(pipe) if args.timing else (pipe, None)
    plain = None
    with previews(args.preview and ranks.first, pipe, num, names=names, processes=ranks.world) as preview:
        if args.compare:
            other = pipe.works(labels, num if labels is None else None, options.plain(), seed=args.seed)
            list(draw(pipe, works[:1]))  # nothing that is measured pays for set-up
            plain = draw_plain(pipe, other, preview(f"plain {other[0].schedule}"))
        name = f"{'reused' if schedule.local else 'plain'} {schedule}"
        report = sample_all(
            pipe,
            works,
            folder,
            ranks,
            about=lambda index: about(works[index]),
            overwrite=args.overwrite,
            name=name,
            observer=preview(name),
        )
    if report is None:
        return 0  # the first process says it all
    images = folder.shown()
    target = folder.path / "grid.png" if images else folder.path
    if images:
        save(grid(images), target)
    if args.pack:
        target = folder.pack()
    if not report.made:
        print(f"{shown}: all {num} images were there -> {target}")
        return 0
    said = record(pipe, shown, works, report.seconds, known) | {"made": report.made, "processes": ranks.world}
    rest = "" if report.made == num else f", {report.made} of them now"
    seconds = f"{report.seconds / ranks.world:.2f} s"
    print(f"{shown}: {num} image{'s' * (num > 1)} with {schedule} evaluations{rest} in {seconds} -> {target}")
    if watch is not None:
        said["phases"] = watch.seconds
        print("of which " + ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in watch.seconds.items()))
    if plain is not None and images:
        said["compare"] = compare(folder.path, works, names, plain, images, report.seconds)
    write_json(folder.path / "run.json", said)
    return 0


def about(work: Work) -> dict[str, Any]:
    """What the manifest says of an image."""
    own = {} if work.label is None else {"label": work.label}
    return {"seed": image_seed(work.seed or 0, work.index), **own}


def draw_plain(
    pipe: Pipeline, works: Sequence[Work], observer: StepObserver | None
) -> tuple[list[Image.Image], float]:
    """The first images without reuse, and the seconds that all of them took."""
    began, failed = time.perf_counter(), []
    images: list[Image.Image] = []
    for result in draw(pipe, works, observer):
        if isinstance(result, Failed):
            failed.append(result.work.index)
        elif len(images) < MAX_COLUMNS:
            images.append(result.image)
    if failed:
        raise failure(failed, works[0].seed or 0, "nothing can be compared")
    return images, time.perf_counter() - began


def compare(
    out: Path,
    works: Sequence[Work],
    names: Sequence[str] | None,
    plain: tuple[Sequence[Image.Image], float],
    images: Sequence[Image.Image],
    seconds: float,
) -> dict[str, Any]:
    """Plain decoding and reuse side by side: a picture, a line, and what is to be recorded."""
    schedule = works[0].schedule
    steps, shown, faster = len(schedule.steps), len(plain[0]), plain[1] / seconds
    rows = [
        Row(plain[0], f"plain {steps} steps", f"{plain[1]:.1f} s"),
        Row(images[:shown], f"reused {schedule}", f"{seconds:.1f} s   {gain(faster)}"),
    ]
    save(comparison(rows, None if names is None else names[:shown]), out / "compare.png")
    print(f"plain decoding in as many steps took {plain[1]:.2f} s: reuse is {gain(faster)} -> {out / 'compare.png'}")
    return {"full": steps, "seconds": plain[1], "speedup": faster}


def gain(faster: float) -> str:
    return f"{faster:.2f}x faster" if faster >= 1 else f"{1 / faster:.2f}x slower"


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture, whole or not at all."""
    with atomic_write(path) as file:
        picture.save(file, "PNG")
