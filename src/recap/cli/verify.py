"""Check that a model under grouped decoding obeys its laws.

MODEL is a folder, a model that comes with the package, or a published size, which is then built with random
weights: the laws do not hang on training. Exit status 1 when a law fails.
"""

from __future__ import annotations

import argparse
import json
import sys

from recap.cli.options import DTYPES, add_model, load_net
from recap.contract import TOLERANCE, Contract, Law
from recap.models.zoo import adapt, family_of


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest relative error (default 1e-5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="default: float32 on the CPU, else float64")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    shown, _, net = load_net(args.model, args.tiny, args.seed, args.device)
    # other devices choose other kernels for other batch sizes, and their rounding grows over a whole run
    dtype = args.dtype or ("float32" if args.device == "cpu" else "float64")
    net = net.to(dtype=DTYPES[dtype])
    contract = Contract(adapt(net), family_of(net).selector(), args.seed, args.tolerance)
    laws: list[Law] = []
    if not args.json:
        print(f"{shown} on {args.device}, {dtype}")
    for law in contract.run():
        laws.append(law)
        if not args.json:
            print(f"  {law}", flush=True)
    failed = sum(not law.ok for law in laws)
    if args.json:
        print(json.dumps([law.as_dict() for law in laws], indent=2))
    else:
        print(f"{failed} of {len(laws)} laws failed" if failed else f"all {len(laws)} laws hold")
    if failed:
        print(f"recap verify: {shown} breaks {failed} law(s)", file=sys.stderr)
    return 1 if failed else 0
