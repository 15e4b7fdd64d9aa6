"""Print what schedules cost: operations, cache bytes and predicted speed-up, without running anything.

Without arguments: every ReCAP row of the paper's tables. With --model and a schedule: that one.
"""

from __future__ import annotations

import argparse
import json

from recap.cli.options import DTYPES, add_schedule, described, schedule_of
from recap.planning import Plan, paper_plans, plan, table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="a published size or a model folder")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the cache (default float32)")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    add_schedule(parser)


def run(args: argparse.Namespace) -> int:
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
        "Speed-up is against the plain run with as many sub-steps, by operations alone."
    )
    return 0


def plans_of(args: argparse.Namespace) -> list[Plan]:
    dtype = DTYPES[args.dtype]
    if args.model is None:
        if any(value is not None for value in (args.full, args.total, args.plain, args.setting)) or args.local:
            raise ValueError("a schedule was given without a model; add --model NAME")
        return paper_plans(dtype)
    name, config, sampling = described(args.model)
    if args.full is None and args.total is None and sampling.full is None:
        raise ValueError("say how many evaluations: --full T [--local T'] [--plain u], or --total K --plain u")
    schedule = schedule_of(args, sampling, config.num_tokens)
    return [plan(name, config, schedule, setting=args.setting or sampling.preset, dtype=dtype)]
