"""Measure why reuse works: how little context features move, and what each local evaluation gets wrong.

The first part is Figure 2 of the paper on any model: the cosine similarity of the context's features before and
after n more tokens become known. The second draws images and holds every local evaluation against a full one.
Writes drift.json, drift.png, error.json and error.png.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from recap.cli.options import add_engine, add_model, add_schedule, schedule_of
from recap.cli.records import Request
from recap.cli.sample import labels_of, pipeline_of
from recap.core.decode import check_fit
from recap.core.noise import image_generators
from recap.core.schedule import Schedule
from recap.evaluation.drift import Drift, feature_drift
from recap.evaluation.error import LocalError, error_name, local_error
from recap.evaluation.images import open_images
from recap.evaluation.plots import plot_drift, plot_error, require
from recap.files import write_json
from recap.pipeline import Pipeline

SHOWN = (1, 4, 16, 64, 128)  # updates in the table for people


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    parser.add_argument(
        "--images", metavar="PATH", help="folder, zip or npz of pictures to take tokens from (default: drawn)"
    )
    parser.add_argument(
        "--labels",
        help="class names or numbers with commas between them (default: spread over all; for --images: none)",
    )
    parser.add_argument("--num", type=int, default=64, help="how many images (default 64)")
    parser.add_argument("--batch", type=int, default=8, help="images at a time (default 8)")
    parser.add_argument("--seed", type=int, default=0, help="of the images (default 0)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    add_engine(parser)
    parser.add_argument("--out", default="drift", help="folder for numbers and plots (default drift)")
    add_schedule(parser)


def run(args: argparse.Namespace) -> int:
    for name in ("num", "batch"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} is {getattr(args, name)}; it must be at least 1")
    require()
    pipe, shown = pipeline_of(args)
    pipe.progress = False
    schedule = schedule_of(args, pipe.sampling, pipe.model.num_tokens)
    check_fit(pipe.model, schedule)
    drawn = labels_of(args.labels, args.num, pipe)
    request = Request(args.num, None if drawn is None else drawn[: args.num], args.seed, args.batch)
    tokens, labels, source = tokens_of(args, pipe, request)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    about = {"model": shown, "seed": args.seed, "dtype": args.dtype}
    drift = feature_drift(pipe.model, tokens, labels, seed=args.seed, batch=args.batch, progress=True)
    write_json(out / "drift.json", {**about, "tokens": source, **drift.as_dict()})
    plot_drift(drift, out / "drift.png", title=f"{shown}: {len(tokens)} images")
    print(f"{shown}: {source}")
    print(table(drift))
    if not schedule.local:
        print(f"{schedule} evaluations are plain decoding: no local evaluation to measure; add --local")
        print(f"-> {out / 'drift.png'}")
        return 0
    rows = local_error(
        pipe, schedule, request.labels, num=request.num, seed=args.seed, batch=args.batch, progress=True
    )
    kind = error_name(pipe.model)
    error = {"schedule": str(schedule), "num": request.num, "labels": request.labels, "error": kind}
    write_json(out / "error.json", {**about, **error, "rows": [row.as_dict() for row in rows]})
    plot_error(rows, out / "error.png", title=f"{shown}: {schedule} evaluations, {request.num} images", ylabel=kind)
    print(summary(rows, schedule, kind))
    print(f"-> {out / 'drift.png'}, {out / 'error.png'}")
    return 0


def tokens_of(args: argparse.Namespace, pipe: Pipeline, request: Request) -> tuple[Tensor, Tensor | None, str]:
    """Tokens of whole images, their labels if they have any, and where they came from, in words."""
    if args.images is None:
        tokens = drawn_tokens(pipe, request)
        labels = None if request.labels is None else torch.tensor(request.labels)
        return tokens, labels, f"tokens of {len(tokens)} images drawn by the model itself, {pipe.default_schedule()}"
    tokens = encoded_tokens(args.images, pipe, request)
    if args.labels is None or request.labels is None:
        branch = ", without classes" if pipe.model.classes else ""
        return tokens, None, f"tokens of {len(tokens)} images from {args.images}{branch}"
    return tokens, torch.tensor(request.labels[: len(tokens)]), f"tokens of {len(tokens)} images from {args.images}"


def drawn_tokens(pipe: Pipeline, request: Request) -> Tensor:
    """Tokens that the model draws itself with its default schedule."""
    tokens, batches, schedule = [], request.batches(), pipe.default_schedule()
    with tqdm(total=len(batches) * len(schedule.steps), desc=f"drawing {schedule}", unit="step") as bar:
        for indices in batches:
            output = pipe(
                **request.of(indices),
                schedule=schedule,
                generator=image_generators(request.seed, indices),
                output_type="latent",
                callback_on_step_end=lambda *_: bar.update(),
            )
            tokens.append(output.tokens)
    return torch.cat(tokens)


@torch.inference_mode()
def encoded_tokens(path: str, pipe: Pipeline, request: Request) -> Tensor:
    """Tokens of the first pictures in a folder or file."""
    tokenizer: Any = pipe.tokenizer
    if tokenizer is None:
        raise ValueError("this model has no tokenizer to read --images with; leave them out, or give it one")
    side = math.isqrt(pipe.model.num_tokens) * tokenizer.config.stride
    tokens: list[Tensor] = []
    for images in open_images(path).batches(request.batch):
        if images.shape[2:] != (side, side):
            height, width = images.shape[2:]
            raise ValueError(f"{path} has pictures of {width}x{height}; this model reads {side}x{side}, resize them")
        tokens.append(tokenizer.encode(images.to(pipe.device)))
        if sum(map(len, tokens)) >= request.num:
            break
    return torch.cat(tokens)[: request.num]


def table(drift: Drift) -> str:
    """Similarity by context and update, mean and spread over layers."""
    columns = [(j, n) for j, n in enumerate(drift.updates) if n in SHOWN or n == drift.updates[-1]]
    lines = ["similarity of context features after n more tokens, mean ± spread over layers"]
    lines.append(f"{'K':>5}" + "".join(f"{f'n={n}':>16}" for _, n in columns))
    for context in drift.contexts:
        mean, spread = drift.mean(context), drift.spread(context)
        cells = [f"{mean[j]:.4f} ± {spread[j]:.4f}" if j < len(mean) else "" for j, _ in columns]
        lines.append(f"{context:>5}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def summary(rows: list[LocalError], schedule: Schedule, kind: str) -> str:
    """The range of the error of local evaluations, and where it is largest."""
    low, high = min(rows, key=lambda row: row.mean), max(rows, key=lambda row: row.mean)
    return (
        f"{schedule} evaluations, {kind}: {low.mean:.2e} to {high.mean:.2e}, "
        f"largest in sub-step {high.step} ({high.decoded:.0%} of the tokens known)"
    )
