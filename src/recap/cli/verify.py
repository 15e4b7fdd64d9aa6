"""Check that grouped decoding of a model is exact where it must be.

MODEL is a folder, a model that comes with the package, or a published size, which is then built with random
weights: the checks do not depend on training. For a model of one's own it is `package.module:name`: an adapter, what
`recap.wrap` takes, or a function that makes one. Exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from torch import nn

from recap.cli.options import DTYPES, add_model, any_pipeline_of
from recap.models.adapter import Adapter
from recap.models.registry import adapt
from recap.verification.verifier import TOLERANCE, Check, Verifier
from recap.view.say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "model")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of what is checked (default 0)")
    parser.add_argument("--length", type=int, metavar="N", help="tokens of a text (default 64 at most)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest relative error (default 1e-5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="default: float32 on the CPU, else float64")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")
    parser.set_defaults(engine="auto")


def run(args: argparse.Namespace) -> int:
    # other devices choose other kernels for other batch sizes, and their rounding grows over a whole run
    args.dtype = args.dtype or ("float32" if args.device == "cpu" else "float64")
    if ":" in args.model and not Path(args.model).exists():
        shown, model = args.model, own(args.model)
        model.module.to(device=args.device, dtype=DTYPES[args.dtype])
    else:
        pipe, shown = any_pipeline_of(args)
        model = pipe.model
    model = model.short() if args.length is None else model.at(args.length)
    checks: list[Check] = []
    if not args.json:
        say(f"{shown} on {args.device}, {args.dtype}")
    for check in Verifier(model, model.selector(), args.seed, args.tolerance).run():
        checks.append(check)
        if not args.json:
            say(f"  {check}")
    failed = sum(not check.ok for check in checks)
    if args.json:
        say(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        say(f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed")
    if failed:
        say(f"recap verify: {shown} fails {failed} check{'s' * (failed > 1)}", file=sys.stderr)
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
    if not isinstance(found, Adapter | nn.Module):
        raise ValueError(f"{name} gives a {type(found).__name__}; expected an adapter or a torch module")
    return adapt(found)
