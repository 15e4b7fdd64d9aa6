"""Serve a model over HTTP: sampling and editing, the requests of different clients drawn together.

Image i of a seed is the same whoever else asks. Set RECAP_TOKEN in the environment to ask for a bearer token. Ends on
SIGTERM or Ctrl-C when accepted work is finished. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import sys
from dataclasses import fields
from pathlib import Path

from recap.cli.options import add_engine, add_model
from recap.cli.sample import pipeline_of
from recap.serving.limits import Limits

TOKEN = "RECAP_TOKEN"
NEEDED = ("fastapi", "uvicorn")
ABOUT = {
    "batch": "images drawn at a time",
    "queue": "images that may wait; more are answered 429",
    "timeout": "seconds for one request",
    "grace": "seconds for accepted work after the signal to stop",
    "max_images": "images of one request",
    "max_steps": "evaluations of one image, full and local",
    "max_pixels": "pixels of a picture that is sent",
    "max_body": "bytes of one request",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "--model", metavar="MODEL")
    add_engine(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the model")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on, 0 for any (default 8000)")
    group = parser.add_argument_group("limits")
    for limit in fields(Limits):
        flag, kind = f"--{limit.name.replace('_', '-')}", float if isinstance(limit.default, float) else int
        about = f"{ABOUT[limit.name]} (default {limit.default})"
        group.add_argument(flag, type=kind, default=limit.default, metavar="N", help=about)
    parser.set_defaults(seed=0)  # of random weights, where a published size is served


def run(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{" and ".join(missing)} is not installed; pip install "recap-mgm[serve]"')
    limits = Limits(**{limit.name: getattr(args, limit.name) for limit in fields(Limits)})
    token = os.environ.get(TOKEN)
    if token is not None and not token.strip():
        raise ValueError(f"{TOKEN} is set but empty; set it to a secret, or unset it")
    if token is None and not is_loopback(args.host):
        print(
            f"recap serve: warning: {args.host} can be reached from elsewhere and no token is asked for; "
            f"set {TOKEN}, or leave --host out",
            file=sys.stderr,
        )
    pipe, shown = pipeline_of(args)
    pipe.progress = False
    if pipe.tokenizer is None:
        raise ValueError(f"{shown} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
    from recap.serving.server import serve  # needs the extra
    from recap.serving.service import Service

    name = Path(shown).name if Path(shown).is_dir() else shown  # where it lies is nobody's business
    serve(Service(pipe, name, limits), args.host, args.port, token=token)
    return 0


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
