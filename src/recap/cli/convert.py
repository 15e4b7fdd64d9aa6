"""Convert an official checkpoint file into a model folder.

Reads MAR, MAGE, AutoNAT/MaskGIT, KL-16 and VQGAN files; nothing that a file contains is executed.
"""

from __future__ import annotations

import argparse
from typing import Any

from recap.checkpoints import CheckpointError, load_official, save_pretrained
from recap.cli.options import DTYPES
from recap.core.presets import PRESETS
from recap.models.registry import SIZES, TOKENIZER_SIZES, known_architecture
from recap.view.say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the official file")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument("--model", metavar="NAME", help="the size that the file must have (default: what it has)")
    parser.add_argument("--heads", type=int, help="attention heads, for sizes that were never published")
    parser.add_argument("--dtype", choices=DTYPES, help="convert the weights (default: as they are)")


def run(args: argparse.Namespace) -> int:
    dtype = DTYPES[args.dtype] if args.dtype else None
    net = load_official(args.file, model=args.model, heads=args.heads, dtype=dtype)
    known = {config: name for name, config in {**SIZES, **TOKENIZER_SIZES}.items()}
    config = getattr(net, "config", None)
    name = known.get(config)  # type: ignore[arg-type]
    about: dict[str, Any] = {"name": name} if name else {}
    if name in PRESETS:
        about["sampling"] = {"preset": name}
    try:
        save_pretrained(net, args.out, **about)
    except OSError as error:
        raise CheckpointError(f"{args.out} could not be written: {error}") from error
    parameters = sum(p.numel() for p in net.parameters())
    say(f"{name or known_architecture(net).name}: {parameters / 1e6:.1f} M parameters written to {args.out}")
    return 0
