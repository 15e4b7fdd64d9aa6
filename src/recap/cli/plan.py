"""Print what schedules cost: operations, memory and predicted speed-up, without loading or running anything.

Without arguments: every ReCAP row of the paper's tables. With --model and a schedule: that one.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from recap.cli.options import DTYPES, add_length, add_sampling, at_length, byte_size
from recap.core.options import SamplingOptions
from recap.models.registry import size_name
from recap.pipelines import TextPipeline, blank
from recap.pipelines.loading import find_model
from recap.planning.plan import Plan, memory_table, paper_plans, plan, table
from recap.view.say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="MODEL", help="a published size or a model folder")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of model and cache (default float32)")
    parser.add_argument("--batch", type=int, default=1, help="images or texts at a time, for the memory (default 1)")
    parser.add_argument("--memory", type=byte_size, metavar="SIZE", help="say how many fit into, say, 80GB")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where: a GPU computes more ahead (default cpu)"
    )
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    add_length(parser)
    about = "how many of them are a prompt (default 0)"
    parser.add_argument("--prompt", type=int, default=0, metavar="N", help=about)
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    if args.prompt < 0 or (args.length is not None and not args.prompt < args.length):
        raise ValueError(f"--prompt is {args.prompt} of {args.length} tokens; leave some of them to write")
    if not 1 <= args.batch <= 10**6:
        raise ValueError(f"--batch is {args.batch}; plan for 1 to 1,000,000 images at a time")
    plans = plans_of(args)
    if args.json:
        say(json.dumps([p.as_dict() for p in plans]))
        return 0
    say(table(plans))
    for p in plans if args.model else ():
        groups = " | ".join(" ".join(map(str, group.sizes)) for group in p.schedule)
        say(f"\ntokens of each sub-step, groups parted by bars:\n{groups}")
    say(
        f"\nOne {plans[0].noun}. A multiply-add is two operations; full and local are means of one evaluation and "
        "branch.\n"
        "Speed-up is against the plain run with as many sub-steps, by operations alone.\n"
    )
    say(memory_table(plans, args.memory))
    say(
        f"\nPredicted peaks in {args.dtype} on {args.device}, beside Python and its libraries: weights, and the\n"
        f"larger of tokenizer (float32, all images of a batch) and cache with activations."
    )
    return 0


def plans_of(args: argparse.Namespace) -> list[Plan]:
    dtype, options = DTYPES[args.dtype], SamplingOptions.from_args(args)
    more: dict[str, Any] = {"batch": args.batch, "dtype": dtype, "cuda": args.device == "cuda", "limit": args.memory}
    if args.model is None:
        if options != SamplingOptions() or args.length or args.prompt:
            raise ValueError("a schedule or a length was given without a model; add --model MODEL")
        return paper_plans(**more)
    folder = find_model(args.model)
    name = size_name(args.model) if folder is None else args.model
    pipe = at_length(blank(folder or name), args.length)
    own = pipe.options_for(options)
    if own.full is None and pipe.modality == "images":
        raise ValueError("say how many evaluations: --schedule T+T', or --full T with --local T'")
    tokenizer: Any = None if pipe.decoder is None else pipe.decoder.config
    more |= {"preset": own.preset or "", "order": own.selector_name}
    if isinstance(pipe, TextPipeline):
        schedule = pipe.schedule(own, pipe.length - args.prompt, args.prompt)
    elif args.prompt:
        raise ValueError("--prompt is for texts; images begin from nothing")
    else:
        schedule = pipe.schedule(own)
    return [plan(name, pipe.model.config, schedule, tokenizer, **more)]
