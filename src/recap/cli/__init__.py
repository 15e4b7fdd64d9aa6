"""The command `recap`: parse, call, print."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from recap.core.memory import is_out_of_memory
from recap.runs.ranks import Stopped, launched_world
from recap.view.say import printable, say

SHARED = ("sample", "evaluate", "sweep")  # commands that several processes can run together
CLOSED = 141  # exit status of a process that writes to a pipe that nobody reads
MAX_MESSAGE = 2000  # characters; a message may quote a file that has no end
COMMANDS = (
    "sample",
    "edit",
    "write",
    "studio",
    "serve",
    "evaluate",
    "drift",
    "sweep",
    "tune",
    "report",
    "bench",
    "verify",
    "plan",
    "convert",
    "models",
    "train",
)


class Parser(argparse.ArgumentParser):
    """Arguments whose errors quote them so that a terminal can show them."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(printable(message or ""), file)


def parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The arguments of the commands with these names; only their modules are imported."""
    top = Parser(prog="recap", description="Masked generative models, made fast by reuse.")
    top.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        command = import_module(f"recap.cli.{name}")
        doc = (command.__doc__ or "").strip()
        sub = commands.add_parser(name, help=doc.splitlines()[0], description=doc)
        command.arguments(sub)
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        sub.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None, ready: Callable[[], object] = lambda: None) -> int:
    """Run a command. Bad input is one line and exit status 2, any other error one line and 1; --debug shows all.

    `ready` is called once all is imported.
    """
    argv = sys.argv[1:] if argv is None else argv
    named = [word for word in argv if word != "--debug"][:1]
    args = parser(named if named and named[0] in COMMANDS else COMMANDS).parse_args(argv)
    try:
        ready()
        if args.command not in SHARED and launched_world() > 1:
            raise ValueError(f"this command runs in one process; start {' or '.join(SHARED)} with torchrun")
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as stop:
        say(f"recap {args.command}: {str(stop) or 'interrupted'}", file=sys.stderr)
        return stop.status if isinstance(stop, Stopped) else 130
    except BrokenPipeError:  # whoever read this has heard enough
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # for what is flushed at the very end
        return CLOSED
    except Exception as error:
        if args.debug:
            raise
        text, status = explained(error)
        say(f"recap {args.command}: {text}", file=sys.stderr)
        return status


def explained(error: Exception) -> tuple[str, int]:
    """An error in one line, and the exit status that goes with it."""
    if is_out_of_memory(error):
        advice = "use --batch auto, a smaller --batch or another --device"
        return f"memory did not suffice ({one_line(error)}); {advice}", 1
    if isinstance(error, ValueError | OSError | FloatingPointError):
        return one_line(error), 2
    return f"unexpected {type(error).__name__}: {one_line(error)}; --debug shows where it came from", 1


def one_line(error: BaseException) -> str:
    """A message on one line: lists within commas, and nothing in it that would move a terminal's cursor."""
    text = re.sub(r":\n\s+", ": ", str(error).strip())
    text = re.sub(r"\s*\n\s+", ", ", text).replace("\n", "; ")
    text = printable(text)
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]} ... ({len(text) - MAX_MESSAGE:,} more characters; --debug shows all)"
    return text or type(error).__name__
