"""Draw images with a model.

MODEL is a folder, a model that comes with the package (see `recap models`), or a published size, which is then
built with random weights: that shows how sampling runs and how long it takes, but no picture of anything.
Image i of a seed is the same in batches of any size.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
from PIL import Image
from tqdm.auto import tqdm

import recap
from recap import weights
from recap.checkpoints import hub
from recap.cli.options import (
    DTYPES,
    add_batch,
    add_engine,
    add_model,
    add_order,
    add_schedule,
    check_batch,
    check_device,
    guidance_scale,
    load_net,
    schedule_of,
    selector_of,
)
from recap.core.decode import check_fit
from recap.core.noise import image_generators, image_seed
from recap.core.presets import Sampling
from recap.core.schedule import Schedule
from recap.labels import find_classes
from recap.memory import Fitting, choose_batch
from recap.models.mage import MAGE
from recap.models.mar import MAR
from recap.models.zoo import TOKENIZER_SIZES, build, randomize, tiny_tokenizer
from recap.pictures import Row, comparison, grid
from recap.pipeline import Pipeline
from recap.timing import timed, warm_up


@dataclass(frozen=True, slots=True)
class Request:
    """Which images to draw: their labels if there are any, the seed they share, and how many at a time."""

    num: int
    labels: list[int] | None
    seed: int
    batch: int

    def batches(self) -> list[range]:
        """The indices of the images of each batch."""
        return [range(first, min(first + self.batch, self.num)) for first in range(0, self.num, self.batch)]

    def of(self, indices: range) -> dict[str, Any]:
        """What the pipeline is asked for these images."""
        if self.labels is None:
            return {"num_images": len(indices)}
        return {"labels": [self.labels[index] for index in indices]}


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a run gave: the images, where the time went, and how many evaluations were run."""

    images: list[Image.Image]
    seconds: dict[str, float]
    evaluations: dict[str, int]


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument("--labels", help="class names or numbers with commas between them (default: spread over all)")
    parser.add_argument("--num", type=int, default=4, help="how many images (default 4, or one for each label)")
    add_batch(parser, 8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    add_engine(parser)
    parser.add_argument("--out", default="samples", help="folder for the images (default samples)")
    parser.add_argument(
        "--compare", action="store_true", help="draw the same with plain decoding in as many steps, side by side"
    )
    add_schedule(parser)
    add_sampling(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """What a user may have otherwise than the model does."""
    group = parser.add_argument_group("instead of the model's own")
    group.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START,END")
    group.add_argument("--temperature", type=float, metavar="T", help="temperature of the draws")
    add_order(group)


def run(args: argparse.Namespace) -> int:
    if args.num < 1:
        raise ValueError(f"--num is {args.num}; draw at least one image")
    check_batch(args.batch)
    pipe, shown = pipeline_of(args)
    if pipe.tokenizer is None:
        raise ValueError(f"{shown} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
    schedule = sampling_of(args, pipe)
    labels = labels_of(args.labels, args.num, pipe)
    num = len(labels) if labels else args.num
    batch = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    request = Request(num, labels, args.seed, batch)
    if args.compare and not schedule.local:
        raise ValueError(f"--compare has nothing to compare: {schedule} evaluations are plain decoding; add --local")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    plain = None
    if args.compare:
        first = request.batches()[0]
        warm_up(pipe, schedule, request.of(first), image_generators(request.seed, first))
        plain = draw(pipe, plain_version(args, pipe, schedule), request, "plain")
    result = draw(pipe, schedule, request, "reused" if schedule.local else "plain")
    for index, image in enumerate(result.images):
        image.save(out / f"{index:06d}.png")
    grid(result.images).save(out / "grid.png")
    about = record(args, pipe, shown, schedule, request, result)
    seconds, what = result.seconds["total"], f"{len(result.images)} images with {schedule} evaluations"
    print(f"{shown}: {what} in {seconds:.2f} s -> {out / 'grid.png'}")
    if plain is not None:
        faster = plain.seconds["total"] / seconds
        about["compare"] = {
            "full": len(schedule.steps),
            "seconds": plain.seconds,
            "evaluations": plain.evaluations,
            "speedup": faster,
        }
        names = None if labels is None else [name_of(pipe, label) for label in labels]
        rows = [
            Row(plain.images, f"plain {len(schedule.steps)} steps", f"{plain.seconds['total']:.1f} s"),
            Row(result.images, f"reused {schedule}", f"{seconds:.1f} s   {gain(faster)}"),
        ]
        comparison(rows, names).save(out / "compare.png")
        print(
            f"plain decoding in as many steps took {plain.seconds['total']:.2f} s: reuse is {gain(faster)} "
            f"-> {out / 'compare.png'}"
        )
    (out / "run.json").write_text(json.dumps(about, indent=2) + "\n")
    return 0


def draw(pipe: Pipeline, schedule: Schedule, request: Request, name: str) -> Drawn:
    """Draw all images of a request, batch by batch, and note where the time goes."""
    pipe, watch = timed(pipe)
    pipe.progress = False
    images: list[Image.Image] = []
    batches, fitting = request.batches(), Fitting(request.batch, pipe.device)
    with tqdm(total=len(batches) * len(schedule.steps), desc=f"{name} {schedule}", unit="step") as bar:

        def drawn(indices: range) -> list[Image.Image]:
            with watch.measure("total"):
                found: list[Image.Image] = pipe(
                    **request.of(indices),
                    schedule=schedule,
                    generator=image_generators(request.seed, indices),
                    callback_on_step_end=lambda *_: bar.update(),
                ).images
            return found

        for indices in batches:
            for _, some in fitting.parts(indices, drawn):
                images += some
    return Drawn(images, watch.seconds, {phase: watch.calls[phase] for phase in ("full", "local")})


def sampling_of(args: argparse.Namespace, pipe: Pipeline, known: int = 0) -> Schedule:
    """The schedule and the order: the model's own, with what the arguments change in them."""
    if args.order is not None:
        pipe.selector = selector_of(args.order)
    if args.setting:
        own = pipe.sampling
        pipe.sampling = Sampling(args.setting, full=own.full, local=own.local, plain=own.plain)
    if args.guidance is not None:
        pipe.sampling = replace(pipe.sampling, guidance=args.guidance)
    if args.temperature is not None:
        pipe.sampling = replace(pipe.sampling, temperature=args.temperature)
    args.setting = None
    schedule = schedule_of(args, pipe.sampling, pipe.model.num_tokens - known, known)
    check_fit(pipe.model, schedule)
    return schedule


def plain_version(args: argparse.Namespace, pipe: Pipeline, schedule: Schedule) -> Schedule:
    """Plain decoding with as many steps, all else being equal."""
    changes = {"full": len(schedule.steps), "local": 0, "plain": None, "total": None, "chain": 1}
    return schedule_of(argparse.Namespace(**{**vars(args), **changes}), pipe.sampling, pipe.model.num_tokens)


def pipeline_of(args: argparse.Namespace) -> tuple[Pipeline, str]:
    """The pipeline for a command's model; published sizes get a tokenizer with random weights."""
    name = args.model or weights.default()
    if name is None:
        raise ValueError("no model comes with this package; name a folder or a published size with --model")
    check_device(args.device)
    folder, dtype = hub.snapshot(name) if hub.is_name(name) else weights.locate(name), DTYPES[args.dtype]
    if folder is not None and not args.tiny:
        return Pipeline.from_pretrained(folder, device=args.device, torch_dtype=dtype).compile(args.engine), name
    shown, setting, net = load_net(name, args.tiny, args.seed, args.device)
    tokenizer = None
    if not isinstance(net, MAGE):
        config = TOKENIZER_SIZES["kl16" if isinstance(net, MAR) else "vqgan-f16"]
        tokenizer = randomize(build(tiny_tokenizer(config) if args.tiny else config), args.seed).to(args.device)
    pipe = Pipeline(net, tokenizer, setting=setting)
    pipe.sampling = replace(pipe.sampling, full=12, local=4)  # enough to see it run
    return pipe.to(dtype).compile(args.engine), shown


def labels_of(text: str | None, num: int, pipe: Pipeline) -> list[int] | None:
    """One label for each image; given ones are repeated in turn."""
    classes = pipe.model.classes
    if not classes:
        if text:
            raise ValueError("this model is unconditional; leave --labels out")
        return None
    if text is None:
        return [index * classes // num for index in range(num)]
    try:
        given = find_classes(text, pipe.class_names, classes)
    except ValueError as error:
        raise ValueError(f"--labels: {error}") from error
    return [given[index % len(given)] for index in range(max(num, len(given)))]


def gain(faster: float) -> str:
    return f"{faster:.2f}x faster" if faster >= 1 else f"{1 / faster:.2f}x slower"


def name_of(pipe: Pipeline, label: int) -> str:
    return pipe.class_names[label] if pipe.class_names else f"class {label}"


def record(
    args: argparse.Namespace, pipe: Pipeline, shown: str, schedule: Schedule, request: Request, result: Drawn
) -> dict[str, Any]:
    """Everything needed to draw the same again, and what it took."""
    labels, steps = request.labels, schedule.steps
    return {
        "model": shown,
        "labels": labels,
        "class_names": None if labels is None or not pipe.class_names else [pipe.class_names[i] for i in labels],
        "seed": request.seed,
        "seeds": [image_seed(request.seed, index) for index in range(request.num)],
        "batch": request.batch,
        "sampling": pipe.sampling.as_dict(),
        "full": schedule.full,
        "local": schedule.local,
        "plain": schedule.plain,
        "order": args.order,
        "tokens": list(schedule.sizes),
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].token_temperature, steps[-1].token_temperature],
        "choice_temperature": [steps[0].choice_temperature, steps[-1].choice_temperature],
        "head_steps": sorted({step.head_steps for step in steps}, reverse=True),
        "dtype": args.dtype,
        "device": args.device,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "versions": {
            "recap": recap.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
    }
