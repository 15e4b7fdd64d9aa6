"""Regenerate parts of a picture.

What is regenerated is the white part of a mask, a box, all but a part, or a share of the tokens; the tokens of the
rest stay as they are. The model's own numbers of evaluations shrink with the share of tokens that is regenerated;
numbers that are given stay. Version i of a seed is the same in any batch, and a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from recap.cli.options import (
    add_batch,
    add_model,
    add_preview,
    add_running,
    add_sampling,
    check_batch,
    labels_of,
    options_of,
    pipeline_of,
)
from recap.cli.sample import about, save
from recap.pipelines import Pipeline
from recap.pipelines.editing import starts_of, variation
from recap.planning.memory import choose_batch
from recap.runs.files import write_json
from recap.runs.folder import ImageFolder
from recap.runs.ranks import Ranks
from recap.runs.record import identity, record
from recap.runs.sample import sample_all
from recap.runs.works import Work
from recap.view.images import PLACES, box_mask, fit, keep_mask, marked, open_picture
from recap.view.preview import previews
from recap.view.sheet import Row, comparison


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--image", required=True, metavar="FILE", help="the picture to edit")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--mask", metavar="FILE", help="a picture of the same size, white where to regenerate")
    what.add_argument(
        "--redraw", metavar="BOX", help="regenerate left,top,right,bottom, in pixels of the model's image"
    )
    what.add_argument("--keep", metavar="PART", help=f"regenerate all but a part: {', '.join(PLACES)}, like left:0.5")
    what.add_argument("--strength", type=float, metavar="S", help="regenerate this share of the tokens, at random")
    parser.add_argument("--labels", metavar="A,B", help="class of what is regenerated; several make several versions")
    parser.add_argument("--num", type=int, default=1, help="how many versions (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    add_batch(parser)
    add_running(parser)
    parser.add_argument("--fit", action="store_true", help="crop the picture, and its mask, to a square and scale it")
    parser.add_argument("--paste", action="store_true", help="put the pixels that are not regenerated back")
    parser.add_argument("--out", default="edited", metavar="DIR", help="folder to write into (default edited)")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    add_preview(parser)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    check_batch(args.batch)
    if args.strength is not None and args.paste:
        raise ValueError("--paste puts back what a mask leaves; with --strength there is none, leave one of them out")
    pipe, shown = pipeline_of(args)
    pipe.need_tokenizer()
    pipe.progress = False
    if pipe.model.classes and args.labels is None:
        raise ValueError(f"{shown} has {pipe.model.classes} classes; say with --labels what is to be generated")
    labels = labels_of(args, pipe, 1)
    image, mask = pictures_of(args, pipe.side)
    works = works_of(args, pipe, labels, image, mask)
    schedule, num = works[0].schedule, len(works)
    pipe.batch_size = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    known = identity(pipe, works)
    folder = ImageFolder(args.out, num, known)
    names = None if labels is None else [pipe.name_of(label) for label in labels]
    with previews(args.preview, pipe, num, names=names, before=image) as preview:
        report = sample_all(
            pipe,
            works,
            folder,
            Ranks(),
            about=lambda index: about(works[index]),
            overwrite=args.overwrite,
            name=f"editing {schedule}",
            observer=preview(f"editing {schedule}"),
        )
    assert report is not None
    images, target = folder.shown(), folder.path / "strip.png"
    if images:
        masked = None if works[0].start is None or mask is None else works[0].start.masked
        save(strip(image, masked, images, names, f"{shown}  {schedule}"), target)
    said = record(pipe, shown, works, report.seconds, known) | {"edit": edit_record(args, works)}
    write_json(folder.path / "run.json", said)
    tokens = pipe.model.num_tokens
    print(
        f"{shown}: {tokens - schedule.known} of {tokens} tokens regenerated with {schedule} evaluations"
        f"{in_proportion(args, pipe, schedule.known)}, {num} version{'s' * (num > 1)} in {report.seconds:.2f} s "
        f"-> {target if images else folder.path}"
    )
    return 0


def works_of(
    args: argparse.Namespace, pipe: Pipeline, labels: list[int] | None, image: Image.Image, mask: Image.Image | None
) -> list[Work]:
    """One version for each label, or as many as asked for."""
    num = args.num if labels is None else len(labels)
    given = torch.tensor(labels) if labels is not None else None
    asked: dict[str, Any]
    if mask is None:
        before = pipe.encode(image)  # refuses a picture that does not fit
        asked = variation(pipe, before, args.strength, labels=given, num_images=num, seed=args.seed)
    else:
        asked = {"starts": starts_of(pipe, image, mask, args.paste).of(num)}
    return pipe.works(given, None if labels else num, options_of(args), seed=args.seed, **asked)


def in_proportion(args: argparse.Namespace, pipe: Pipeline, known: int) -> str:
    """What to say of evaluations that were made fewer because part of the image is known."""
    if not known or options_of(args).full is not None:
        return ""
    return f" (in proportion to {pipe.schedule(options_of(args))} for all tokens)"


def edit_record(args: argparse.Namespace, works: list[Work]) -> dict[str, Any]:
    """What was edited, for the record of the run."""
    given = {name: getattr(args, name) for name in ("image", "mask", "redraw", "keep", "strength", "fit", "paste")}
    schedule = works[0].schedule
    return {**given, "regenerated": schedule.tokens, "of": schedule.tokens + schedule.known}


def pictures_of(args: argparse.Namespace, side: int) -> tuple[Image.Image, Image.Image | None]:
    """The picture, and the mask if there is one, in the model's size where --fit asks for it."""
    image, mask = opened(args.image, "RGB"), None
    if args.mask is not None:
        mask = opened(args.mask, "L")
        if mask.size != image.size:
            raise ValueError(
                f"the mask is {mask.width} x {mask.height} pixels but the image {image.width} x {image.height}; "
                f"make them of one size"
            )
    if args.fit:
        image, mask = fit(image, side), None if mask is None else fit(mask, side, mask=True)
    if args.redraw is not None:
        mask = box_mask(side, *numbers(args.redraw))
    elif args.keep is not None:
        where, colon, share = args.keep.partition(":")
        try:
            mask = keep_mask(side, where, float(share) if colon else 0.5)
        except ValueError as error:
            raise ValueError(f"--keep {args.keep}: {error}") from error
    return image, mask


def opened(path: str, mode: str) -> Image.Image:
    """A picture from a file, upright."""
    return open_picture(path, path, upright=True).convert(mode)


def numbers(box: str) -> list[int]:
    try:
        values = [int(part) for part in box.split(",")]
    except ValueError:
        values = []
    if len(values) != 4:
        raise ValueError(f"--redraw is {box!r}; give four whole numbers, left,top,right,bottom, with commas")
    return values


def strip(
    image: Image.Image, masked: Tensor | None, images: list[Image.Image], names: list[str] | None, title: str
) -> Image.Image:
    """Before, what is regenerated, and after, side by side."""
    first, above = [image], ["before"]
    if masked is not None:
        first, above = [*first, marked(image, masked)], [*above, "regenerated"]
    after = ["after"] * len(images) if names is None else [f"after: {name}" for name in names]
    return comparison([Row([*first, *images], title)], [*above, *after])
