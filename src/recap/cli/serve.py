"""Serve models over HTTP: images and text, the requests of different clients drawn together.

Image or text i of a seed is the same whoever else asks. Set RECAP_TOKEN in the environment to ask for a bearer token.
Ends on SIGTERM or Ctrl-C when accepted work is finished. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from recap.cli.options import add_model, add_running, any_pipeline_of
from recap.pipelines import Pipeline, TextPipeline
from recap.server.limits import Limits
from recap.view.say import say

TOKEN = "RECAP_TOKEN"
NEEDED = ("fastapi", "uvicorn", "prometheus_client")


def arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, 8000, Limits())


def add_server(parser: argparse.ArgumentParser, port: int, limits: Limits) -> None:
    """Where to listen, what to serve, and within which limits."""
    add_model(parser, action="append", default=[])
    add_running(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=port, help=f"port to listen on, 0 for any (default {port})")
    about = "a further name that it is reached by, * for any; other names in requests are refused"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=about)
    group = parser.add_argument_group("limits")
    for field in fields(Limits):
        usual = getattr(limits, field.name)
        flag, about = f"--{field.name.replace('_', '-')}", f"{field.metadata['about']} (default {usual})"
        group.add_argument(flag, type=type(usual), default=usual, metavar="N", help=about)
    parser.set_defaults(seed=0)  # of random weights


def run(args: argparse.Namespace) -> int:
    token = os.environ.get(TOKEN)
    token = None if token is None else token.strip()  # as it is sent
    if token == "":
        raise ValueError(f"{TOKEN} is set but empty; set it to a secret, or unset it")
    check_extra("serve")
    if token is None:
        warn_if_open(args, f"no token is asked for; set {TOKEN}, or leave --host out")
    return start(args, args.model or [None], token=token)


def check_extra(extra: str) -> None:
    """Refuse to start without the packages that the server needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{" and ".join(missing)} is not installed; pip install "recap-mgm[{extra}]"')


def warn_if_open(args: argparse.Namespace, why: str) -> None:
    """Say so if others than this machine can reach the server."""
    try:
        loopback = ipaddress.ip_address(args.host).is_loopback
    except ValueError:
        loopback = args.host == "localhost"
    if not loopback:
        said = f"recap {args.command}: warning: {args.host} can be reached from elsewhere, and {why}"
        say(said, file=sys.stderr)


def start(
    args: argparse.Namespace, models: Sequence[str | None], *, page: bool = False, token: str | None = None
) -> int:
    """Serve until a signal comes; says where once the models are loaded."""
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    from recap.server.app import create_app  # needs the extra
    from recap.server.process import address, bound, serve
    from recap.server.worker import Worker

    with bound(args.host, args.port) as listener:
        worker = Worker(loaded(args, models), limits)
        app = create_app(worker, token, page=page, hosts=(args.host, *args.allow_host))
        what = "recap studio: open" if page else f"{', '.join(worker.models)}: listening on"
        say(f"{what} {address(listener)}")
        serve(app, worker, listener)
    return 0


def loaded(args: argparse.Namespace, models: Sequence[str | None]) -> dict[str, Pipeline | TextPipeline]:
    """Pipelines by the names of their folders; where they lie is nobody's business."""
    found: dict[str, Pipeline | TextPipeline] = {}
    for model in dict.fromkeys(models):
        pipe, shown = any_pipeline_of(argparse.Namespace(**{**vars(args), "model": model}))
        name = Path(shown).resolve().name
        if name in found:
            raise ValueError(f"two models are called {name!r}; name each once, by folders of different names")
        found[name] = pipe
    return found
