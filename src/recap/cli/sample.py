"""Draw images with a model.

MODEL is a folder, a model that comes with the package (see `recap models`), or a published size, which is then
built with random weights: that shows how sampling runs and how long it takes, but no picture of anything.
Image i of a seed is the same for any batch size and number of processes: with `torchrun --nproc-per-node G -m --
recap sample ...` several share the work. A run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

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
from recap.cli.preview import add_preview, previews
from recap.cli.records import Request, identity, record
from recap.cli.sheets import Drawn, compare, draw_plain, save, shown_images
from recap.core.decode import check_fit
from recap.core.noise import image_generators, image_seed
from recap.core.presets import Sampling
from recap.core.schedule import Schedule
from recap.distributed.folder import FORMATS, ImageFolder
from recap.distributed.plans import RANDOM, even_labels, random_labels, read_labels, spread_labels
from recap.distributed.ranks import Ranks
from recap.distributed.sampling import Job, sample_all
from recap.files import write_json
from recap.labels import find_classes
from recap.memory import choose_batch
from recap.models.mage import MAGE
from recap.models.mar import MAR
from recap.models.zoo import TOKENIZER_SIZES, build, randomize, tiny_tokenizer
from recap.pictures import grid
from recap.pipeline import Pipeline
from recap.timing import warm_up


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument(
        "--labels", help="class names or numbers with commas, `random`, or @FILE with one a line (default: spread)"
    )
    parser.add_argument("--per-class", type=int, metavar="N", help="N images of every class, instead of --labels")
    parser.add_argument("--num", type=int, help="how many images (default 4, or one for each label)")
    add_batch(parser, 8)
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    add_engine(parser)
    parser.add_argument("--out", default="samples", help="folder for the images (default samples)")
    parser.add_argument("--format", choices=FORMATS, default="png", help="PNG files, a zip of them, or an npz")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument(
        "--compare", action="store_true", help="draw the same with plain decoding in as many steps, side by side"
    )
    add_preview(parser)
    add_schedule(parser)
    add_sampling(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """What a user may have otherwise than the model does."""
    group = parser.add_argument_group("instead of the model's own")
    group.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START,END")
    group.add_argument("--temperature", type=float, metavar="T", help="temperature of the draws")
    add_order(group)


def run(args: argparse.Namespace) -> int:
    if args.num is not None and args.num < 1:
        raise ValueError(f"--num is {args.num}; draw at least one image")
    check_batch(args.batch)
    ranks = Ranks.join()
    if args.compare and ranks.world > 1:
        raise ValueError("--compare measures one process; leave it out, or run without torchrun")
    args.device = ranks.device(args.device)
    pipe, shown = pipeline_of(args)
    if pipe.tokenizer is None:
        raise ValueError(f"{shown} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
    schedule = sampling_of(args, pipe)
    labels = planned_labels(args, pipe)
    num = len(labels) if labels else (4 if args.num is None else args.num)
    batch = choose_batch(pipe, schedule, args.batch, num, cache_limit=args.cache_limit)
    request = Request(num, labels, args.seed, batch)
    if args.compare and not schedule.local:
        raise ValueError(f"--compare has nothing to compare: {schedule} evaluations are plain decoding; add --local")
    folder = ImageFolder(args.out, args.format, num, identity(args, pipe, schedule, request))
    job = Job(schedule, num, args.seed, batch, request.of)
    names = None if labels is None else [name_of(pipe, label) for label in labels]

    def about(index: int) -> dict[str, Any]:
        own = {} if labels is None else {"label": labels[index]}
        return {"seed": image_seed(args.seed, index), **own}

    name = f"{'reused' if schedule.local else 'plain'} {schedule}"
    plain = None
    drawing = previews(args.preview and ranks.first, pipe, num, names=names, processes=ranks.world)
    with drawing as preview:
        if args.compare:
            first, other = request.batches()[0], plain_version(args, pipe, schedule)
            warm_up(pipe, schedule, request.of(first), image_generators(request.seed, first))
            plain = draw_plain(pipe, replace(job, schedule=other), preview(f"plain {other}", other))
        seen = preview(name, schedule)
        report = sample_all(pipe, job, folder, ranks, about=about, overwrite=args.overwrite, name=name, audience=seen)
    if report is None:
        return 0  # the first process says it all
    result = Drawn(shown_images(folder), report.seconds, report.evaluations)
    if result.images:
        save(grid(result.images), folder.path / "grid.png")
    target = folder.path / "grid.png" if result.images else folder.result
    if not report.drawn:
        print(f"{shown}: all {num} images were there -> {target}")
        return 0
    known = record(args, pipe, shown, schedule, request, result)
    known |= {"drawn": report.drawn, "processes": ranks.world}
    seconds, what = result.seconds["total"], f"{num} images with {schedule} evaluations"
    rest = "" if report.drawn == num else f", {report.drawn} of them now"
    print(f"{shown}: {what}{rest} in {seconds / ranks.world:.2f} s -> {target}")
    if plain is not None and result.images:
        known["compare"] = compare(folder.path, schedule, names, plain, result)
    write_json(folder.path / "run.json", known)
    return 0


def planned_labels(args: argparse.Namespace, pipe: Pipeline) -> list[int] | None:
    """One label for each image, by the plan that the arguments name."""
    classes = pipe.model.classes
    if args.per_class is not None:
        if not classes:
            raise ValueError("this model is unconditional; say --num instead of --per-class")
        if args.labels is not None or args.num is not None:
            raise ValueError("--per-class says how many images of which classes; leave --labels and --num out")
        return even_labels(args.per_class, classes)
    if classes and args.labels == RANDOM:
        return random_labels(args.seed, args.num or 4, classes)
    if classes and args.labels and args.labels.startswith("@"):
        given = read_labels(args.labels[1:], pipe.class_names, classes)
        return [given[index % len(given)] for index in range(args.num or len(given))]
    return labels_of(args.labels, args.num or 4, pipe)


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
        return spread_labels(num, classes)
    try:
        given = find_classes(text, pipe.class_names, classes)
    except ValueError as error:
        raise ValueError(f"--labels: {error}") from error
    return [given[index % len(given)] for index in range(max(num, len(given)))]


def name_of(pipe: Pipeline, label: int) -> str:
    return pipe.class_names[label] if pipe.class_names else f"class {label}"
