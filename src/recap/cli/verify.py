"""Check that a model under grouped decoding obeys its laws.

MODEL is a folder, or a published size, which is then built with random weights: the laws do not hang on
training. Exit status 1 when a law fails.
"""

from __future__ import annotations

import argparse
import json
import sys

from recap.cli.options import add_model, load_net
from recap.contract import TOLERANCE, Contract, Law
from recap.models.zoo import adapt, family_of


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest relative error in float32")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    shown, _, net = load_net(args.model, args.tiny, args.seed, args.device)
    contract = Contract(adapt(net.float()), family_of(net).selector(), args.seed, args.tolerance)
    laws: list[Law] = []
    if not args.json:
        print(f"{shown} on {args.device}, float32")
    for law in contract.run():
        laws.append(law)
        if not args.json:
            mark = "ok  " if law.ok else "FAIL"
            print(f"  {mark}  {law.law:<48} error {law.error:.1e}  tolerance {law.tolerance:.0e}", flush=True)
    failed = sum(not law.ok for law in laws)
    if args.json:
        print(json.dumps([law.as_dict() for law in laws], indent=2))
    else:
        print(f"{failed} of {len(laws)} laws failed" if failed else f"all {len(laws)} laws hold")
    if failed:
        print(f"recap verify: {shown} breaks {failed} law(s)", file=sys.stderr)
    return 1 if failed else 0
