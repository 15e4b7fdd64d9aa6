"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from recap import weights
from recap.core.blocks import ROWS
from recap.core.options import SamplingOptions, guidance_scale, head_steps, truth
from recap.core.orders import ORDERS
from recap.core.presets import PRESETS, TEXT
from recap.core.steps import CONFIDENCE, SOLVERS
from recap.engine import ENGINES
from recap.models.registry import build, family_of, randomize, size_name
from recap.pipelines import Pipeline, TextPipeline, pipeline_from
from recap.pipelines.inputs import RANDOM, check_count, find_classes, planned_labels, random_labels, read_labels
from recap.pipelines.loading import find_model, find_parts
from recap.planning.memory import size_of

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
TEXT_LENGTH = 256  # tokens of texts with which a model is measured
AnyPipeline = Pipeline | TextPipeline
MOST_BATCH = 2**16  # images at a time
SHORT_RUN = SamplingOptions(full=12, local=4)  # of random weights: enough to see it run


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """How to sample, in the words of `SamplingOptions`; what is left out is the model's own."""
    group = parser.add_argument_group("sampling, where it is not to be the model's own")
    _add_usual(group, [name for name in PRESETS if name not in TEXT])
    group.add_argument("--choice-temperature", type=float, metavar="T", help="temperature of the choice of positions")
    group.add_argument(
        "--head-steps", type=head_steps, metavar="S", help="diffusion steps, or FULL/LOCAL after either evaluation"
    )
    group.add_argument("--solver", choices=SOLVERS, help="how a diffusion head takes its steps")


def add_writing(parser: argparse.ArgumentParser) -> None:
    """How to write text, likewise."""
    group = parser.add_argument_group("sampling, where it is not to be the model's own")
    _add_usual(group, list(TEXT))
    group.add_argument("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens of probability P")
    group.add_argument("--block", type=int, metavar="N", help="write blocks of N tokens from left to right")
    group.add_argument("--rows", choices=ROWS, help="what local evaluations recompute (default target)")
    group.add_argument("--threshold", type=float, metavar="P", help="commit every token that is at least this sure")
    group.add_argument("--confidence", choices=CONFIDENCE, help="what it means to be sure of a token")


def _add_usual(group: Any, presets: Sequence[str]) -> None:
    """Options that mean the same for images and texts."""
    group.add_argument("--preset", choices=presets, help="published setting to follow")
    group.add_argument(
        "--schedule", metavar="T+T'", help="full and local evaluations and maybe more: 64, 48+16, 48+16:warmup=32"
    )
    group.add_argument("--full", type=int, metavar="T", help="full evaluations")
    group.add_argument("--local", type=int, metavar="T'", help="local evaluations (with --full, default 0: plain)")
    group.add_argument("--warmup", type=int, metavar="U", help="groups at the start without local evaluations")
    group.add_argument("--chain", type=int, metavar="C", help="local evaluations that a group may have (default 1)")
    group.add_argument("--guidance", type=guidance_scale, metavar="S", help="guidance scale, or START/END")
    group.add_argument("--temperature", type=float, metavar="T", help="temperature of the draws")

    group.add_argument("--order", choices=ORDERS, help="where to decode first")
    about = "rows of a target set, as a multiple of what its group commits (default 1, informed 2)"
    group.add_argument("--target", type=float, metavar="M", help=about)
    about = "the same random numbers whenever a position is drawn again in a group (default false, informed true)"
    group.add_argument("--coupled", type=truth, metavar="true|false", help=about)


def add_batch(parser: argparse.ArgumentParser, usual: int = 8, noun: str = "image", **more: Any) -> None:
    """How many at a time, and how much memory that may take."""
    about = f"{noun}s at a time, or auto: as many as free memory allows (default {usual})"
    given = {"default": usual, **more}
    parser.add_argument("--batch", type=batch_size, metavar="N", help=about, **given)
    about = "take fewer at a time if their cache would need more, for example 2GB"
    parser.add_argument("--cache-limit", type=byte_size, metavar="SIZE", help=about)


def batch_size(text: str) -> int | str:
    """A number of images, or the word auto."""
    if text != "auto" and int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; take at least one image at a time, or say auto")
    if text != "auto" and int(text) > MOST_BATCH:
        raise argparse.ArgumentTypeError(
            f"{text} is too many; take at most {MOST_BATCH} images at a time, or say auto"
        )
    return text if text == "auto" else int(text)


def byte_size(text: str) -> int:
    """Bytes; a text that means none is for argparse to refuse with its words."""
    try:
        return size_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_labels(parser: argparse.ArgumentParser, num: int) -> None:
    """Which images: their classes, their number, their seed."""
    parser.add_argument(
        "--labels", help="class names or numbers with commas, `random`, or @FILE with one a line (default: spread)"
    )
    parser.add_argument("--num", type=int, help=f"how many images (default {num}, or one for each label)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")


def labels_of(args: argparse.Namespace, pipe: AnyPipeline, usual: int) -> list[int] | None:
    """One label for each image, by the plan that the arguments name; None for a model without classes."""
    classes, names, text = pipe.model.classes, pipe.class_names, args.labels
    num, each = usual if args.num is None else args.num, getattr(args, "per_class", None)
    check_count(num, "--num")
    if not classes and (text is not None or each is not None):
        raise ValueError("this model is unconditional; leave --labels and --per-class out, and say --num")
    if each is not None:
        if text is not None or args.num is not None:
            raise ValueError("--per-class says how many images of which classes; leave --labels and --num out")
        check_count(each, "--per-class")
        check_count(each * classes, f"--per-class {each} times {classes} classes")
        return [index % classes for index in range(each * classes)]
    if text == RANDOM:
        return random_labels(args.seed, num, classes)
    given: list[int] | None = None
    if text is not None and text.startswith("@"):
        given = read_labels(text[1:], names, classes)
        num = args.num or len(given)
    elif text is not None:
        given = find_classes(text, names, classes)
        num = args.num or len(given)
    return planned_labels(given, num, names, classes)


def add_model(parser: argparse.ArgumentParser, name: str = "--model", **more: Any) -> None:
    about = "a model folder, a model of `recap models`, or a published size to build with random weights"
    parser.add_argument(name, **{"help": about, "metavar": "MODEL", **more})
    parser.add_argument("--tiny", action="store_true", help="shrink a published size")
    parser.add_argument("--device", default="cpu", help="where to run (default cpu)")


def add_length(parser: argparse.ArgumentParser) -> None:
    """How long texts are; images have the size that they have."""
    about = f"tokens of a text (default {TEXT_LENGTH}, or as many as the model has places for)"
    parser.add_argument("--length", type=int, metavar="N", help=about)


def at_length(pipe: AnyPipeline, length: int | None) -> AnyPipeline:
    """The pipeline for texts of a length, where it writes texts."""
    if isinstance(pipe, TextPipeline):
        return pipe.at(min(TEXT_LENGTH, pipe.language.longest) if length is None else length)
    if length is not None:
        raise ValueError(f"--length is for texts; images of this model have {pipe.model.num_tokens} tokens")
    return pipe


def add_running(parser: argparse.ArgumentParser) -> None:
    """How a model is run."""
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    about = "how the model is run (default auto: onednn on a CPU, else eager)"
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto", help=about)


def check_device(name: str) -> None:
    """Refuse a device that is not there, before anything is loaded."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def default_model(modality: str = "images") -> str:
    name = weights.default(modality)
    if name is None:
        raise ValueError(f"no model of {modality} comes with this package; name one with --model")
    return name


def pipeline_of(args: argparse.Namespace) -> tuple[Pipeline, str]:
    """The pipeline for a command's model, and its name for people; published sizes get random weights."""
    pipe, name = any_pipeline_of(args, "images")
    assert isinstance(pipe, Pipeline)
    return pipe, name


def any_pipeline_of(args: argparse.Namespace, modality: str | None = None) -> tuple[AnyPipeline, str]:
    """Likewise for a model of images or of text, or of either where it is all the same."""
    name = args.model or default_model(modality or "images")
    check_device(args.device)
    folder = find_model(name)
    parts = find_parts(folder or name, lambda config: randomize(build(config), args.seed), shrink=args.tiny)
    kind = family_of(parts.net).modality
    if modality not in (None, kind):
        text = kind == "text"
        does, command = ("writes text", "recap write") if text else ("draws images", "recap sample")
        raise ValueError(f"{name} {does}, which is for `{command}`; this command takes models of {modality}")
    pipe = pipeline_from(parts, name)
    if folder is None:
        pipe.options = pipe.options.override(SHORT_RUN)
        name = f"{size_name(name)}{' (tiny)' if args.tiny else ''}, random weights"
    return pipe.to(args.device, DTYPES[args.dtype]).compile(args.engine), name
