"""Functions that run in terminals of their own, in processes forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import select
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

COLUMNS, LINES = 120, 30
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
COLOURS = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": ""}
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["recap", "tests.cli.terminals"])


def in_terminal(
    function: Callable[..., int], arguments: tuple[str, ...], path: str, folder: Path, environment: dict[str, str]
) -> None:
    """Take a terminal, and call a function in it that returns an exit status."""
    os.chdir(folder)
    os.login_tty(os.open(path, os.O_RDWR))  # Ctrl-C there means this process
    os.environ.update(environment)
    status = function(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Run:
    """A function in a terminal, and all that it wrote there."""

    def __init__(self, function: Callable[..., int], *arguments: str, **environment: str) -> None:
        self.master, self.slave = os.openpty()
        termios.tcsetwinsize(self.slave, (LINES, COLUMNS))
        given = (function, arguments, os.ttyname(self.slave), Path.cwd(), {**COLOURS, **environment})
        self.process = CONTEXT.Process(target=in_terminal, args=given)
        self.process.start()
        self.written = b""

    def read(self, enough: Callable[[bytes], bool], seconds: float = 60) -> None:
        """Until it wrote enough, or has ended and there is no more."""
        end = time.monotonic() + seconds
        while not enough(self.written):
            assert time.monotonic() < end, self.written[-500:]
            if select.select([self.master], [], [], 0.05)[0]:
                self.written += os.read(self.master, 65536)
            elif self.process.exitcode is not None:
                return

    def end(self) -> tuple[int, str]:
        """How it ended, and all that it wrote."""
        self.read(lambda _: False)
        os.close(self.slave)
        os.close(self.master)
        assert self.process.exitcode is not None
        return self.process.exitcode, self.written.decode()
