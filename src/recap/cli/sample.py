"""Generate images with a model.

MODEL is a folder, a model that comes with the package (see `recap models`), or a published size, which is then
built with random weights: that shows how sampling runs and how long it takes, but no picture of anything.
Image i of a seed is the same for any batch size and number of processes: with `torchrun --nproc-per-node G -m --
recap sample ...` several share the work. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from recap.bench.pairs import DrawInTurn, measured_before
from recap.cli.options import add_batch, add_labels, add_model, add_running, add_sampling, labels_of, pipeline_of
from recap.core.options import SamplingOptions
from recap.pipelines import Pipeline
from recap.planning.memory import choose_batch
from recap.runs.draw import draw
from recap.runs.files import as_json
from recap.runs.folder import KEPT, RECORD
from recap.runs.numbered import ImageFolder
from recap.runs.ranks import Ranks
from recap.runs.record import identity, record
from recap.runs.sample import sample_all
from recap.runs.works import Done, Work
from recap.view.preview import preview
from recap.view.say import say
from recap.view.sheet import as_png, comparison, grid

GRID, COMPARED, PACKED = "grid.png", "compare.png", "images.npz"


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
        "--compare", action="store_true", help="generate the same without reuse, in as many steps and in equal time"
    )
    parser.add_argument("--preview", action="store_true", help="show the images in the terminal as they are decoded")
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    ranks = Ranks.join()
    if args.compare and ranks.world > 1:
        raise ValueError("--compare measures one process; leave it out, or run without torchrun")
    args.device = ranks.device(args.device)
    pipe, shown = pipeline_of(args)
    pipe.check_output("pil")
    labels, options = labels_of(args, pipe, 4), SamplingOptions.from_args(args)
    works = pipe.works(labels, args.num or 4 if labels is None else None, options, seed=args.seed)
    schedule, num = works[0].schedule, len(works)
    names = None if labels is None else [pipe.name_of(label) for label in labels]
    pipe.batch_size = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    if args.compare and not schedule.local:
        raise ValueError(f"--compare has nothing to compare: {schedule} evaluations are plain decoding; add --local")
    known = identity(pipe, works)
    extras = [*[GRID] * (num <= KEPT), *[COMPARED] * args.compare, *[PACKED] * (args.pack is not None), RECORD]
    folder = ImageFolder(args.out, num, known, extras=extras)
    turns = None
    if args.compare:
        plain = pipe.works(labels, num if labels is None else None, pipe.options_for(options).plain(), seed=args.seed)
        turns = DrawInTurn(pipe, plain, setup=pipe.works(labels and labels[:1], 1, "2+1", seed=args.seed))
    name = f"{'reused' if schedule.local else 'plain'} {schedule}"
    with preview(args.preview and ranks.first, pipe, num, name, names) as observer:
        report = sample_all(
            pipe, works, folder, ranks, overwrite=args.overwrite, name=name, observer=observer, draw_by=turns or draw
        )
    if report is None:
        return 0  # the first process says it all
    missing = [name for name in extras if report.made or folder.lacks(name)]
    files, told = dict[str, bytes](), list[str]()
    if turns and COMPARED in missing:
        if not report.made:  # the images are there, but nothing says how long they took
            turns.again(pipe, works[:KEPT])
        same = partial(pipe.works, labels, num if labels is None else None, seed=args.seed)
        files[COMPARED], folder.about["compare"] = measured(pipe, options, same, turns, names)
        folder.about["seconds"] = turns.pairs.seconds("reused")
        told = [f"plain decoding in as many steps took {turns.pairs.seconds('plain'):.2f} s: reuse is "]
        told[0] += f"{turns.pairs.speedup} -> {folder.path / COMPARED}"
    elif turns:
        told = [f"nothing was drawn, and so nothing measured; {measured_before(folder.path / RECORD)}"]
    if GRID in missing:
        files[GRID] = as_png(grid(folder.shown()))
    said = record(pipe, shown, works, folder.about.get("seconds"), known) | {**folder.about}
    if RECORD in missing:
        files[RECORD] = as_json(said).encode()
    target = folder.path / GRID if GRID in extras else folder.path
    if args.pack:
        target = folder.pack()
    folder.keep(files)  # all of it is there before anything is said
    if report.made:
        rest = "" if report.made == num else f", {report.made} of them now"
        seconds = f"{folder.about['seconds'] / ranks.world:.2f} s"
        plural = "s" * (num > 1)
        say(f"{shown}: {num} image{plural} with {schedule} evaluations{rest} in {seconds} -> {target}")
    else:
        again = [name for name in files if name != PACKED]
        rest = f"; {' and '.join(again)} made again" if again else ""
        say(f"{shown}: all {num} images were there{rest} -> {target}")
    for line in told:
        say(line)
    return 0


def measured(
    pipe: Pipeline,
    options: SamplingOptions,
    same: Callable[[SamplingOptions], list[Work]],
    turns: DrawInTurn,
    names: Sequence[str] | None,
) -> tuple[bytes, dict[str, Any]]:
    """Plain and reused images beside each other, with what their record says; `same` are works with other options."""
    pairs, schedule = turns.pairs, pipe.schedule(options)
    steps, speedup = len(schedule.steps), pairs.speedup
    gain = f", {speedup.factor}" if speedup.clear else ""
    titles = {"plain": f"plain {steps} steps: {pairs.seconds('plain'):.1f} s"}
    titles["reused"] = f"reused {schedule}: {pairs.seconds('reused'):.1f} s{gain}"
    rows = {titles[way]: list(made.values()) for way, made in turns.answers.items()}
    equal = 0 if speedup.median is None else round(steps / speedup.median)  # plain steps that take as long
    if 0 < equal < steps:
        asked = replace(pipe.options_for(options).plain(), full=equal)
        drawn = draw(pipe, [work for work in same(asked) if work.index in turns.answers["plain"]])
        rows[f"plain {equal} steps, in equal time"] = [one.image for one in drawn if isinstance(one, Done)]
    about = {"full": steps, "seconds": pairs.seconds("plain"), "speedup": speedup.json(), "equal_time": equal}
    return as_png(comparison(rows, names and [names[index] for index in turns.answers["plain"]])), about
