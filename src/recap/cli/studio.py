"""Open a page on which plain decoding and reuse race, for everybody who has a browser.

Draws with the models that come with the package and with folders that --model names; the first one is the default.
Works offline. Ends on Ctrl-C or SIGTERM. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import fields
from pathlib import Path

from recap import weights
from recap.cli.options import DTYPES, add_engine, check_device
from recap.cli.serve import NEEDED, is_loopback
from recap.loading import model_folder
from recap.pipeline import Pipeline
from recap.studio.limits import Limits

ABOUT = {
    "queue": "runs that may wait; more are answered 429",
    "max_images": "images of one run",
    "max_steps": "evaluations of one image, full and local",
    "max_pixels": "pixels of a picture that is sent",
    "max_body": "bytes of one request",
    "max_kept": "bytes of finished runs that are kept for downloads",
    "max_models": "models that are kept in memory",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", action="append", default=[], metavar="MODEL", help="a model folder, or one of `recap models`"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument("--port", type=int, default=7860, help="port to listen on, 0 for any (default 7860)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a further name that it is reached by"
    )
    parser.add_argument("--device", default="cpu", help="where to run (default cpu)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the models")
    add_engine(parser)
    group = parser.add_argument_group("limits")
    for limit in fields(Limits):
        if limit.name in ABOUT:
            about = f"{ABOUT[limit.name]} (default {limit.default})"
            group.add_argument(
                f"--{limit.name.replace('_', '-')}", type=int, default=limit.default, metavar="N", help=about
            )


def run(args: argparse.Namespace) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{" and ".join(missing)} is not installed; pip install "recap-mgm[demo]"')
    limits = Limits(**{name: getattr(args, name) for name in ABOUT})
    if not is_loopback(args.host):
        print(
            f"recap studio: warning: {args.host} can be reached from elsewhere, and whoever reaches it may draw; "
            f"leave --host out to keep it to this machine",
            file=sys.stderr,
        )
    check_device(args.device)
    from recap.serving.server import address, bound, listen  # needs the extra
    from recap.studio.app import Studio, create_app
    from recap.studio.models import Shelf

    def load(folder: Path) -> Pipeline:
        pipe = Pipeline.from_pretrained(folder, device=args.device, torch_dtype=DTYPES[args.dtype])
        return pipe.compile(args.engine)

    with bound(args.host, args.port) as listener:
        studio = Studio(Shelf(offered(args.model), load, limits), limits)
        studio.warm_up()
        app = create_app(studio, hosts=(args.host, *args.allow_host))
        print(f"recap studio: open {address(listener)}", flush=True)
        listen(app, listener, studio.close, limits.grace)
    return 0


def offered(named: list[str]) -> dict[str, Path]:
    """The models on offer by name: those that were named first, then those that come with the package."""
    found: dict[str, Path] = {}
    for model in [*named, *weights.embedded()]:
        folder = model_folder(model)
        if folder not in found.values():
            name, number = folder.resolve().name, 1
            while (unique := name if number == 1 else f"{name}-{number}") in found:
                number += 1
            found[unique] = folder
    return found
