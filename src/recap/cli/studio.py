"""Open a page on which plain decoding and reuse are compared, for everybody who has a browser.

Draws with the models that come with the package and with those that --model names; the first one is the default.
Works offline. Ends on Ctrl-C or SIGTERM. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import sys

from recap import weights
from recap.cli.serve import add_server, check_extra, entries, is_loopback, start
from recap.server.limits import Limits


def arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, 7860, Limits(grace=0.5, max_images=4))


def run(args: argparse.Namespace) -> int:
    check_extra("demo")
    if not is_loopback(args.host):
        print(
            f"recap studio: warning: {args.host} can be reached from elsewhere, and whoever reaches it may draw; "
            f"leave --host out to keep it to this machine",
            file=sys.stderr,
        )
    return start(args, lambda: entries(args, [*args.model, *weights.embedded()]), page=True)
