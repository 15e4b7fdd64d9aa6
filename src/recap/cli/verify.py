"""Check that a model under grouped decoding obeys its laws.

MODEL is a folder, a model that comes with the package, or a published size, which is then built with random
weights: the laws do not hang on training. For a model of one's own it is `package.module:name`: an adapter, what
`recap.accelerate` takes, or a function that makes one. Exit status 1 when a law fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

from torch import nn

from recap.cli.options import DTYPES, add_model, load_net
from recap.contract import TOLERANCE, Contract, Law
from recap.models.adapter import Adapter
from recap.models.zoo import adapt


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of what is checked (default 0)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest relative error (default 1e-5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="default: float32 on the CPU, else float64")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    if ":" in args.model and not Path(args.model).exists():
        shown, model = args.model, own(args.model)
    else:
        shown, _, net = load_net(args.model, args.tiny, args.seed, args.device)
        model = adapt(net)
    # other devices choose other kernels for other batch sizes, and their rounding grows over a whole run
    dtype = args.dtype or ("float32" if args.device == "cpu" else "float64")
    model.module.to(device=args.device, dtype=DTYPES[dtype])
    contract = Contract(model, model.selector(), args.seed, args.tolerance)
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


def own(name: str) -> Adapter:
    """The adapter that `package.module:name` leads to, seen from the folder in which the command is run."""
    place, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(place), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name} leads nowhere ({error}); give package.module:name") from error
    finally:
        sys.path.remove(os.getcwd())
    if not isinstance(found, Adapter | nn.Module):
        found = found()
    if isinstance(found, nn.Module):
        return adapt(found)
    if not isinstance(found, Adapter):
        raise ValueError(f"{name} gives a {type(found).__name__}; expected an adapter or a torch module")
    return found
