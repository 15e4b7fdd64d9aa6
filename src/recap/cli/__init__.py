"""The command `recap`: parse, call, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from recap.cli import (
    bench,
    convert,
    drift,
    edit,
    evaluate,
    fill,
    models,
    plan,
    profile,
    report,
    sample,
    sweep,
    train,
    verify,
)
from recap.distributed.ranks import launched_world
from recap.distributed.stopping import Stopped

TOGETHER = ("sample", "evaluate")  # what several processes can do together
COMMANDS = (sample, edit, fill, evaluate, drift, sweep, report, bench, profile, verify, plan, convert, models, train)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="recap", description="Masked generative models, made fast by reuse.")
    top.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        doc = (command.__doc__ or "").strip()
        sub = commands.add_parser(name, help=doc.splitlines()[0], description=doc)
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; bad input is one line and exit status 2."""
    args = parser().parse_args(argv)
    try:
        if args.command not in TOGETHER and launched_world() > 1:
            raise ValueError(f"this command runs in one process; start {' or '.join(TOGETHER)} with torchrun")
        return int(args.run(args))
    except (ValueError, OSError, FloatingPointError) as error:
        if args.debug:
            raise
        print(f"recap {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"recap {args.command}: {stop or 'interrupted'}", file=sys.stderr)
        return stop.status if isinstance(stop, Stopped) else 130
