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
from pathlib import Path

from torch import nn

from recap.checkpoints import load_pretrained
from recap.cli.options import DTYPES, add_model, check_device, found_or_built, random_net
from recap.models.adapter import Adapter
from recap.models.registry import SIZES, adapt, size_name, tiny
from recap.verification.verifier import TOLERANCE, Check, Verifier


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "model")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of what is checked (default 0)")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest relative error (default 1e-5)")
    parser.add_argument("--dtype", choices=("float32", "float64"), help="default: float32 on the CPU, else float64")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of a table")


def run(args: argparse.Namespace) -> int:
    if ":" in args.model and not Path(args.model).exists():
        shown, model = args.model, own(args.model)
    else:
        check_device(args.device)
        net, shown = found_or_built(args, args.model, load_pretrained, lambda name: random_model(args, name))
        model = adapt(net)
    # other devices choose other kernels for other batch sizes, and their rounding grows over a whole run
    dtype = args.dtype or ("float32" if args.device == "cpu" else "float64")
    model.module.to(device=args.device, dtype=DTYPES[dtype])
    checks: list[Check] = []
    if not args.json:
        print(f"{shown} on {args.device}, {dtype}")
    for check in Verifier(model, model.selector(), args.seed, args.tolerance).run():
        checks.append(check)
        if not args.json:
            print(f"  {check}", flush=True)
    failed = sum(not check.ok for check in checks)
    if args.json:
        print(json.dumps([check.as_dict() for check in checks], indent=2))
    else:
        print(f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed")
    if failed:
        print(f"recap verify: {shown} fails {failed} check{'s' * (failed > 1)}", file=sys.stderr)
    return 1 if failed else 0


def random_model(args: argparse.Namespace, name: str) -> nn.Module:
    """A published size with random weights, without its tokenizer."""
    config = SIZES[size_name(name)]
    return random_net(args)(tiny(config) if args.tiny else config)


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
