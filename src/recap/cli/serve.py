"""Serve models over HTTP: sampling and editing, the requests of different clients drawn together.

Image i of a seed is the same whoever else asks. Set RECAP_TOKEN in the environment to ask for a bearer token. Ends on
SIGTERM or Ctrl-C when accepted work is finished. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from recap import weights
from recap.cli.options import DTYPES, add_running, check_device
from recap.pipelines import Pipeline
from recap.pipelines.loading import model_folder
from recap.server.limits import Limits

if TYPE_CHECKING:
    from recap.server.models import Entry

TOKEN = "RECAP_TOKEN"
NEEDED = ("fastapi", "uvicorn", "prometheus_client")
ABOUT = {
    "batch": "images drawn at a time",
    "queue": "images that may wait; more are answered 429",
    "timeout": "seconds for one request",
    "grace": "seconds for accepted work after the signal to stop",
    "max_images": "images of one request",
    "max_steps": "evaluations of one image, full and local",
    "max_pixels": "pixels of a picture that is sent",
    "max_body": "bytes of one request",
    "max_kept": "bytes of the page's finished runs that are kept for downloads",
    "max_models": "models that are kept in memory",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, 8000, Limits())
    parser.add_argument("--tiny", action="store_true", help="shrink a published size, which has random weights")
    parser.set_defaults(seed=0)  # of these weights


def add_server(parser: argparse.ArgumentParser, port: int, limits: Limits) -> None:
    """Where to listen, what to serve, and within which limits."""
    about = "a model folder, one of `recap models`, or owner/name of the hub; several may be given"
    parser.add_argument("--model", action="append", default=[], metavar="MODEL", help=about)
    parser.add_argument("--device", default="cpu", help="where to run (default cpu)")
    add_running(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=port, help=f"port to listen on, 0 for any (default {port})")
    about = "a further name that it is reached by, where no token is asked for"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=about)
    group = parser.add_argument_group("limits")
    for field in fields(Limits):
        usual = getattr(limits, field.name)
        flag, about = f"--{field.name.replace('_', '-')}", f"{ABOUT[field.name]} (default {usual})"
        group.add_argument(flag, type=type(usual), default=usual, metavar="N", help=about)


def run(args: argparse.Namespace) -> int:
    token = os.environ.get(TOKEN)
    if token is not None and not token.strip():
        raise ValueError(f"{TOKEN} is set but empty; set it to a secret, or unset it")
    check_extra("serve")
    if token is None and not is_loopback(args.host):
        print(
            f"recap serve: warning: {args.host} can be reached from elsewhere and no token is asked for; "
            f"set {TOKEN}, or leave --host out",
            file=sys.stderr,
        )
    models = args.model or [weights.default()]
    if len(models) == 1 and weights.locate(models[0]) is None:  # random weights of a published size
        from recap.cli.options import pipeline_of
        from recap.server.models import Entry

        args.model = models[0]
        pipe, shown = pipeline_of(args)
        return start(args, lambda: [Entry.of(shown, pipe)], token=token)
    return start(args, lambda: entries(args, models), token=token)


def check_extra(extra: str) -> None:
    """Refuse to start without the packages that the server needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{" and ".join(missing)} is not installed; pip install "recap-mgm[{extra}]"')


def start(
    args: argparse.Namespace, entries: Callable[[], list[Entry]], *, page: bool = False, token: str | None = None
) -> int:
    """Serve until a signal comes; says where once the first model is loaded."""
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    check_device(args.device)
    from recap.server.app import create_app  # needs the extra
    from recap.server.models import ModelCache
    from recap.server.process import address, bound, serve
    from recap.server.service import Service

    with bound(args.host, args.port) as listener:
        models = ModelCache(entries(), limits)
        service = Service(models)
        service.warm_up()
        app = create_app(service, token, page=page, hosts=(args.host, *args.allow_host))
        what = "recap studio: open" if page else f"{', '.join(models.entries)}: listening on"
        print(f"{what} {address(listener)}", flush=True)
        serve(app, service, listener)
    return 0


def entries(args: argparse.Namespace, models: list[str]) -> list[Entry]:
    """What is served, read from the folders that the arguments mean."""
    from recap.server.models import Entry

    def load(folder: Path) -> Pipeline:
        pipe = Pipeline.from_pretrained(folder, device=args.device, torch_dtype=DTYPES[args.dtype])
        return pipe.compile(args.engine)

    about = {"device": args.device, "dtype": args.dtype, "engine": args.engine}
    return [Entry.read(name, folder, load, **about) for name, folder in named(models).items()]


def named(models: list[str]) -> dict[str, Path]:
    """Folders by names that tell them apart; where they lie is nobody's business."""
    found: dict[str, Path] = {}
    for model in models:
        folder = model_folder(model)
        if folder not in found.values():
            name, number = folder.resolve().name, 1
            while (unique := name if number == 1 else f"{name}-{number}") in found:
                number += 1
            found[unique] = folder
    return found


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
