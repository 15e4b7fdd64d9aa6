"""Draw images with a model.

MODEL is a folder, or a published size, which is then built with random weights: that shows how sampling runs
and how long it takes, but no picture of anything.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from PIL import Image

from recap.cli.options import add_model, add_schedule, check_device, load_net, schedule_of
from recap.models.mage import MAGE
from recap.models.mar import MAR
from recap.models.zoo import TOKENIZER_SIZES, build, randomize, tiny_tokenizer
from recap.pipeline import Pipeline


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", required=True)
    parser.add_argument("--labels", help="class numbers with commas between them (default: spread over all)")
    parser.add_argument("--num", type=int, default=4, help="how many images (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="samples", help="folder for the images (default samples)")
    add_schedule(parser)


def run(args: argparse.Namespace) -> int:
    if args.num < 1:
        raise ValueError(f"--num is {args.num}; draw at least one image")
    if args.full is None and args.total is None:
        args.full, args.local = 12, 4
    pipe, shown = pipeline_of(args)
    schedule = schedule_of(args, pipe.setting, pipe.model.num_tokens)
    labels = labels_of(args.labels, args.num, pipe.model.classes)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    result = pipe(
        labels, num_images=None if labels else args.num, schedule=schedule, seed=args.seed, output_type="pil"
    )
    seconds = time.perf_counter() - began
    for index, image in enumerate(result.images):
        image.save(out / f"{index:06d}.png")
    grid(result.images).save(out / "grid.png")
    about = {
        "model": shown,
        "labels": labels,
        "seed": args.seed,
        "full": schedule.full,
        "local": schedule.local,
        "plain": schedule.plain,
        "tokens": list(schedule.sizes),
        "seconds": seconds,
        "torch": torch.__version__,
        "device": args.device,
    }
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    print(
        f"{shown}: {len(result.images)} images with {schedule} evaluations in {seconds:.2f} s -> {out / 'grid.png'}"
    )
    return 0


def pipeline_of(args: argparse.Namespace) -> tuple[Pipeline, str]:
    """The pipeline for a command's model; published sizes get a tokenizer with random weights."""
    if Path(args.model).is_dir() and not args.tiny:
        check_device(args.device)
        return Pipeline.from_pretrained(args.model, device=args.device), args.model
    shown, setting, net = load_net(args.model, args.tiny, args.seed, args.device)
    tokenizer = None
    if not isinstance(net, MAGE):
        config = TOKENIZER_SIZES["kl16" if isinstance(net, MAR) else "vqgan-f16"]
        tokenizer = randomize(build(tiny_tokenizer(config) if args.tiny else config), args.seed).to(args.device)
    return Pipeline(net, tokenizer, setting=setting), shown


def labels_of(text: str | None, num: int, classes: int) -> list[int] | None:
    """One label for each image."""
    if not classes:
        if text:
            raise ValueError("this model is unconditional; leave --labels out")
        return None
    if text is None:
        return [index * classes // num for index in range(num)]
    try:
        given = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--labels is {text!r}; give class numbers with commas between them") from error
    return [given[index % len(given)] for index in range(max(num, len(given)))]


def grid(images: list[Image.Image]) -> Image.Image:
    """All images on one sheet, as square as possible."""
    columns = next(c for c in range(1, len(images) + 1) if c * c >= len(images))
    rows = -(-len(images) // columns)
    width, height = images[0].size
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for index, image in enumerate(images):
        sheet.paste(image, (index % columns * width, index // columns * height))
    return sheet
