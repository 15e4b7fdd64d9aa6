"""Print what schedules cost: operations, memory and predicted speed-up, without loading or running anything.

Without arguments: every ReCAP row of the paper's tables. With --model and a schedule: that one.
"""

from __future__ import annotations

import argparse
import json

from recap.cli.options import DTYPES, add_schedule, byte_size, described, described_tokenizer, schedule_of
from recap.models.zoo import SIZES, Config, TokenizerConfig
from recap.planning import Plan, memory_table, paper_plans, plan, table, usual_tokenizer, with_memory


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a published size or a model folder")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of model and cache (default float32)")
    parser.add_argument("--batch", type=int, default=1, help="images at a time, for the memory (default 1)")
    parser.add_argument("--memory", type=byte_size, metavar="SIZE", help="say how many images fit into, say, 80GB")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where: a GPU computes more ahead (default cpu)"
    )
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    add_schedule(parser)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.batch <= 10**6:
        raise ValueError(f"--batch is {args.batch}; plan for 1 to 1,000,000 images at a time")
    plans = plans_of(args)
    if args.json:
        print(json.dumps([p.as_dict() for p in plans]))
        return 0
    print(table(plans))
    for p in plans if args.model else ():
        groups = " | ".join(" ".join(map(str, group.sizes)) for group in p.schedule)
        print(f"\ntokens of each sub-step, groups parted by bars:\n{groups}")
    print(
        "\nOne image. A multiply-add is two operations; full and local are means of one evaluation and branch.\n"
        "Speed-up is against the plain run with as many sub-steps, by operations alone.\n"
    )
    print(memory_table(plans, args.memory))
    print(
        f"\nPredicted peaks in {args.dtype} on {args.device}, beside Python and its libraries: weights, and the\n"
        f"larger of tokenizer (float32, all images of a batch) and cache with activations."
    )
    return 0


def plans_of(args: argparse.Namespace) -> list[Plan]:
    dtype = DTYPES[args.dtype]
    if args.model is None:
        if any(value is not None for value in (args.full, args.total, args.plain, args.setting)) or args.local:
            raise ValueError("a schedule was given without a model; add --model NAME")
        return [peak(args, p, SIZES[p.model], usual_tokenizer(SIZES[p.model])) for p in paper_plans(dtype)]
    name, config, sampling = described(args.model)
    if args.full is None and args.total is None and sampling.full is None:
        raise ValueError("say how many evaluations: --full T [--local T'] [--plain u], or --total K --plain u")
    schedule = schedule_of(args, sampling, config.num_tokens)
    planned = plan(name, config, schedule, setting=args.setting or sampling.preset, dtype=dtype)
    return [peak(args, planned, config, described_tokenizer(args.model, config))]


def peak(args: argparse.Namespace, planned: Plan, config: Config, tokenizer: TokenizerConfig | None) -> Plan:
    """The plan with the memory that the arguments ask for."""
    return with_memory(
        planned,
        config,
        tokenizer,
        batch=args.batch,
        dtype=DTYPES[args.dtype],
        cuda=args.device == "cuda",
        limit=args.memory,
    )
