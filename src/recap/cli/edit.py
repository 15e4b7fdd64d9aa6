"""Regenerate parts of a picture.

What is regenerated is the white part of a mask, a box, all but a part, or a share of the tokens; the tokens of the
rest stay as they are. The model's own numbers of evaluations shrink with the share of tokens that is regenerated;
numbers that are given stay. Version i of a seed is the same in any batch, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import re

from PIL import Image

from recap.cli.options import add_batch, add_model, add_running, add_sampling, labels_of, pipeline_of
from recap.core.options import SamplingOptions
from recap.pipelines.editing import starts_of
from recap.planning.memory import choose_batch
from recap.runs.files import as_json
from recap.runs.folder import KEPT, RECORD
from recap.runs.numbered import ImageFolder
from recap.runs.ranks import Ranks
from recap.runs.record import identity, record
from recap.runs.sample import sample_all
from recap.view.images import PLACES, Opener, box_mask, keep_mask, marked, open_pair
from recap.view.pictures import open_picture
from recap.view.preview import preview
from recap.view.say import say
from recap.view.sheet import as_png, comparison

STRIP = "strip.png"


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--image", required=True, metavar="FILE", help="the picture to edit")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--mask", metavar="FILE", help="a picture of the same size, white where to regenerate")
    what.add_argument(
        "--redraw", type=box, metavar="BOX", help="regenerate left,top,right,bottom, in pixels of the model's image"
    )
    what.add_argument("--keep", metavar="PART", help=f"regenerate all but a part: {', '.join(PLACES)}, like left:0.5")
    what.add_argument("--strength", type=float, metavar="S", help="regenerate this share of the tokens, at random")
    parser.add_argument("--labels", metavar="A,B", help="class of what is regenerated; several make several versions")
    parser.add_argument("--num", type=int, help="how many versions (default 1, or one for each label)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    add_batch(parser)
    add_running(parser)
    parser.add_argument("--fit", action="store_true", help="crop the picture, and its mask, to a square and scale it")
    parser.add_argument("--paste", action="store_true", help="put the pixels that are not regenerated back")
    parser.add_argument("--out", default="edited", metavar="DIR", help="folder to write into (default edited)")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument("--preview", action="store_true", help="show the images in the terminal as they are decoded")
    add_sampling(parser)


def box(text: str) -> list[int]:
    """The sides of a box."""
    if re.fullmatch(r"-?\d+(,-?\d+){3}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no box; give four whole numbers, left,top,right,bottom")
    return [int(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    if args.strength is not None and args.paste:
        raise ValueError("--paste puts back what a mask leaves; with --strength there is none, leave one of them out")
    pipe, shown = pipeline_of(args)
    side, tokens = pipe.side, pipe.model.num_tokens
    if pipe.model.classes and args.labels is None:
        raise ValueError(f"{shown} has {pipe.model.classes} classes; say with --labels what is to be generated")
    labels, options = labels_of(args, pipe, 1), SamplingOptions.from_args(args)
    num = (args.num or 1) if labels is None else len(labels)
    over = None if args.mask is None else opened(args.mask)
    image, mask = open_pair(opened(args.image), over, side, args.fit)
    mask = mask or mask_of(args, side)
    if mask is None:
        works = pipe.works(labels, num, options, seed=args.seed, init=pipe.encode(image), strength=args.strength)
    else:
        works = pipe.works(labels, num, options, seed=args.seed, starts=starts_of(pipe, image, mask, args.paste))
    schedule = works[0].schedule
    names = None if labels is None else [pipe.name_of(label) for label in labels]
    pipe.batch_size = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    known = identity(pipe, works)
    extras = [*[STRIP] * (num <= KEPT), RECORD]
    inputs = [path for path in (args.image, args.mask) if path is not None]
    folder, name = ImageFolder(args.out, num, known, extras=extras, inputs=inputs), f"editing {schedule}"
    with preview(args.preview, pipe, num, name, names) as observer:
        report = sample_all(pipe, works, folder, Ranks(), overwrite=args.overwrite, name=name, observer=observer)
    assert report is not None
    missing = [name for name in extras if report.made or folder.lacks(name)]
    files, drawn = dict[str, bytes](), tokens - schedule.known
    if STRIP in missing:
        first, above = [image], ["before"]
        if mask is not None and works[0].start is not None:
            first, above = [image, marked(image, works[0].start.masked)], ["before", "regenerated"]
        above += [f"after: {name}" for name in names] if names else ["after"] * num
        files[STRIP] = as_png(comparison({f"{shown}  {schedule}": [*first, *folder.shown()]}, above))
    if RECORD in missing:
        asked = {
            name: getattr(args, name) for name in ("image", "mask", "redraw", "keep", "strength", "fit", "paste")
        }
        said = record(pipe, shown, works, folder.about.get("seconds"), known)
        files[RECORD] = as_json(said | {"edit": {**asked, "regenerated": drawn, "of": tokens}}).encode()
    folder.keep(files)  # all of it is there before anything is said
    target = folder.path / STRIP if STRIP in extras else folder.path
    fewer = ""
    if schedule.known and options.full is None:
        fewer = f" (in proportion to {pipe.schedule(options)} for all tokens)"
    say(
        f"{shown}: {drawn} of {tokens} tokens regenerated with {schedule} evaluations{fewer}, "
        f"{num} version{'s' * (num > 1)} in {report.seconds:.2f} s -> {target}"
    )
    return 0


def opened(path: str) -> Opener:
    return lambda check: open_picture(path, path, upright=True, check=check)


def mask_of(args: argparse.Namespace, side: int) -> Image.Image | None:
    """White where --redraw or --keep say that it is regenerated; None with --strength."""
    if args.redraw is not None:
        return box_mask(side, *args.redraw)
    if args.keep is None:
        return None
    where, colon, share = args.keep.partition(":")
    try:
        return keep_mask(side, where, float(share) if colon else 0.5)
    except ValueError as error:
        raise ValueError(f"--keep {args.keep}: {error}") from error
