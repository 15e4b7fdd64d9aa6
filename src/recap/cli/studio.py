"""Open a page on which plain decoding and reuse are compared, for everybody who has a browser.

Draws with the models that --model names and those that come with the package; the first one is the default.
Works offline. Ends on Ctrl-C or SIGTERM. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse

from recap import weights
from recap.cli.serve import add_server, check_extra, start, warn_if_open
from recap.server.limits import Limits


def arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser, 7860, Limits(grace=0.5, max_images=4))


def run(args: argparse.Namespace) -> int:
    check_extra("demo")
    warn_if_open(args, "whoever reaches it may draw; leave --host out to keep it to this machine")
    return start(args, [*args.model, *weights.embedded()], page=True)
