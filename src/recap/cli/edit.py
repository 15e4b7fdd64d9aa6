"""Draw parts of a picture anew.

The model draws the white part of a mask, a box, all but a part, or a share of the tokens; the tokens of the rest stay
as they are. The number of evaluations shrinks with what is to be drawn, unless --full says how many. Version i of a
seed is the same in batches of any size.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm.auto import tqdm

from recap.cli.options import add_engine, add_model, add_schedule
from recap.cli.preview import add_preview, previews
from recap.cli.records import Request, record
from recap.cli.sample import add_sampling, labels_of, name_of, pipeline_of, sampling_of
from recap.cli.sheets import Drawn
from recap.core.noise import image_generators
from recap.core.schedule import Schedule
from recap.distributed.drawing import Audience, alone
from recap.files import write_json
from recap.images import PLACES, box_mask, fit, keep_mask, marked, masks_of, open_picture, token_mask
from recap.pictures import Row, comparison
from recap.pipeline import Pipeline
from recap.timing import timed


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    add_engine(parser)
    parser.add_argument("--image", required=True, metavar="FILE", help="the picture to edit")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--mask", metavar="FILE", help="a picture of the same size, white where to draw anew")
    what.add_argument(
        "--redraw", metavar="BOX", help="draw left,top,right,bottom anew, in pixels of the model's image"
    )
    what.add_argument("--keep", metavar="PART", help=f"draw all but a part anew: {', '.join(PLACES)}, as in left:0.5")
    what.add_argument("--strength", type=float, metavar="S", help="draw this share of the tokens anew, at random")
    parser.add_argument("--labels", metavar="A,B", help="class of what is drawn; several make several versions")
    parser.add_argument("--num", type=int, default=1, help="how many versions (default 1)")
    parser.add_argument("--batch", type=int, default=8, help="versions drawn at a time (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    parser.add_argument("--fit", action="store_true", help="crop the picture, and its mask, to a square and scale it")
    parser.add_argument("--paste", action="store_true", help="put the pixels that are not drawn anew back")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    parser.add_argument("--out", default="edited", metavar="DIR", help="folder to write into (default edited)")
    add_preview(parser)
    add_schedule(parser)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    if args.num < 1:
        raise ValueError(f"--num is {args.num}; draw at least one version")
    if args.batch < 1:
        raise ValueError(f"--batch is {args.batch}; draw at least one version at a time")
    if args.strength is not None and args.paste:
        raise ValueError("--paste puts back what a mask leaves; with --strength there is none, leave one of them out")
    pipe, shown = pipeline_of(args)
    tokenizer = pipe.need_tokenizer()
    if pipe.model.classes and args.labels is None:
        raise ValueError(f"{shown} draws {pipe.model.classes} classes; say with --labels what is to be drawn")
    labels = labels_of(args.labels, args.num, pipe)
    request = Request(len(labels) if labels else args.num, labels, args.seed, args.batch)
    image, mask = pictures_of(args, pipe.side)
    before = pipe.encode(image)  # refuses a picture that does not fit
    if mask is None:
        masked = None
        redrawn = count_of(args.strength, pipe.model.num_tokens)
    else:
        masked = token_mask(masks_of(mask, pipe.side), tokenizer.config.stride)[0]
        redrawn = int(masked.sum())
        if not redrawn:
            raise ValueError("the mask is empty, so there is nothing to redraw; make white what is to be drawn anew")
    schedule = sampling_of(args, pipe, pipe.model.num_tokens - redrawn)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    asked: dict[str, Any] = {"init": before, "strength": args.strength} if mask is None else {"mask": mask}
    names = None if labels is None else [name_of(pipe, label) for label in labels]
    with previews(args.preview, pipe, request.num, names=names, before=image) as preview:
        result = draw(pipe, schedule, request, image, asked, args.paste, preview(f"editing {schedule}", schedule))
    for index, edited in enumerate(result.images):
        edited.save(out / f"{index:06d}.png")
    strip(image, masked, result.images, names, f"{shown}  {schedule}").save(out / "strip.png")
    about = record(args, pipe, shown, schedule, request, result)
    about["edit"] = {
        "image": args.image,
        **{name: getattr(args, name) for name in ("mask", "redraw", "keep", "strength", "fit", "paste")},
        "redrawn": redrawn,
        "of": pipe.model.num_tokens,
    }
    write_json(out / "run.json", about)
    print(
        f"{shown}: {redrawn} of {pipe.model.num_tokens} tokens drawn anew with {schedule} evaluations, "
        f"{len(result.images)} version(s) in {result.seconds['total']:.2f} s -> {out / 'strip.png'}"
    )
    return 0


def draw(
    pipe: Pipeline,
    schedule: Schedule,
    request: Request,
    image: Image.Image,
    asked: dict[str, Any],
    paste: bool,
    audience: Audience | None = None,
) -> Drawn:
    """All versions, batch by batch, and where the time went; an audience takes the place of the progress bar.

    As in `recap sample`, the CPU computes one at a time, so that no image hangs on the size of a batch.
    """
    pipe, watch = timed(pipe)
    pipe.progress = False
    images: list[Image.Image] = []
    batches = (replace(request, batch=1) if alone(pipe) else request).batches()
    total, hidden = len(batches) * len(schedule.steps), audience is not None
    with tqdm(total=total, desc=f"editing {schedule}", unit="step", disable=hidden) as bar:
        for indices in batches:

            def after(_: Pipeline, step: int, decoded: int, values: dict[str, Any], own: range = indices) -> None:
                bar.update()
                if audience is not None:
                    with watch.pause():
                        audience.step(own, step + 1, values["canvas"])

            options: dict[str, Any] = {
                **request.of(indices),
                "schedule": schedule,
                "generator": image_generators(request.seed, indices),
                "callback_on_step_end": after,
            }
            with watch.measure("total"):
                if "mask" in asked:
                    drawn = pipe.edit(image, asked["mask"], **options, paste=paste).images
                else:
                    drawn = pipe(**options, **asked).images
            images += drawn
            if audience is not None:
                audience.done(indices, drawn)
    return Drawn(images, watch.seconds, {phase: watch.calls[phase] for phase in ("full", "local")})


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


def count_of(strength: float, tokens: int) -> int:
    """How many tokens a strength means."""
    if not 0 < strength <= 1:
        raise ValueError(f"--strength is {strength}; it is the share of tokens to draw anew, above 0 and at most 1")
    return max(1, round(strength * tokens))


def strip(
    image: Image.Image, masked: Any, images: list[Image.Image], names: list[str] | None, title: str
) -> Image.Image:
    """Before, what is drawn anew, and after, side by side."""
    first, above = [image], ["before"]
    if masked is not None:
        first, above = [*first, marked(image, masked)], [*above, "drawn anew"]
    after = ["after"] * len(images) if names is None else [f"after: {name}" for name in names]
    return comparison([Row([*first, *images], title)], [*above, *after])
