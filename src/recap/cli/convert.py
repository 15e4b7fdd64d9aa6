"""Convert an official checkpoint file, or a folder of the Hugging Face hub, into a model folder.

Reads files of MAR, MAGE, AutoNAT/MaskGIT, KL-16, VQGAN, and folders of LLaDA and Dream; nothing that a file contains
is executed. Of a folder there is one file at a time in memory, and its tokenizer's files are copied.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from recap.checkpoints import CheckpointError, load_official, save_pretrained
from recap.checkpoints.folder import read_config
from recap.checkpoints.official import size_of
from recap.checkpoints.rewrite import copy_companions, rewrite
from recap.checkpoints.shards import INDEX, WEIGHTS
from recap.cli.options import DTYPES
from recap.core.presets import PRESETS
from recap.models.registry import Config, TokenizerConfig, count_parameters, known_architecture, published_name
from recap.view.say import say


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the official file, or a published folder")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument("--model", metavar="NAME", help="the size that the file must have (default: what it has)")
    parser.add_argument("--heads", type=int, help="attention heads, for sizes that were never published")
    parser.add_argument("--dtype", choices=DTYPES, help="convert the weights (default: as they are)")


def run(args: argparse.Namespace) -> int:
    dtype, source = DTYPES[args.dtype] if args.dtype else None, Path(args.file)
    try:
        if any((source / name).is_file() for name in (WEIGHTS, INDEX)) and not args.heads:
            config = rewrite(source, args.out, dtype=dtype, expected=size_of(args.model) if args.model else None)
        else:
            net: Any = load_official(args.file, model=args.model, heads=args.heads, dtype=dtype)
            config = net.config
            save_pretrained(net, args.out, **about(config, source))
            if source.is_dir():
                copy_companions(source, Path(args.out))
    except OSError as error:
        raise CheckpointError(f"{args.out} could not be written: {error}") from error
    name = published_name(config) or known_architecture(config).name
    say(f"{name}: {count_parameters(config) / 1e6:.1f} M parameters written to {args.out}")
    return 0


def about(config: Config | TokenizerConfig, source: Path) -> dict[str, Any]:
    """What the folder says beside sizes: a name, and how the model is to be run where that is known."""
    name = published_name(config)
    said: dict[str, Any] = {"name": name} if name else {}
    if source.is_dir():
        return said | {"sampling": read_config(source)["sampling"]}
    return said | {"sampling": {"preset": name}} if name in PRESETS else said
