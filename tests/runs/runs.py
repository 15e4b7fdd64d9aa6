"""Commands in processes of their own: forked from one that has imported everything, so that each is there at once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch

from recap.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.runs.runs"])
MODEL = ("--model", "flowers-maskgit", "--full", "2", "--local", "1")
Setup = Callable[[], object]


def child(argv: Sequence[str], log: str, environment: Mapping[str, str], threads: int, setup: Setup | None) -> None:
    """Run a command as a shell would, its output in a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ.update(environment)
    torch.set_num_threads(threads)
    if setup is not None:
        setup()
    status = main(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


class Command:
    """A running `recap`."""

    def __init__(
        self,
        *argv: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        threads: int = 1,
        setup: Setup | None = None,
    ) -> None:
        self.log = log
        arguments = (argv, str(log), dict(environment or {}), threads, setup)
        self.process: ForkServerProcess = CONTEXT.Process(target=child, args=arguments)
        self.process.start()

    def wait(self, seconds: float = 240) -> int:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"{self.log} is not done after {seconds} s"
        return self.process.exitcode

    def signal(self, number: int) -> int:
        pid = self.process.pid
        assert pid is not None
        if self.process.exitcode is None:
            os.kill(pid, number)
        return self.wait()

    @property
    def said(self) -> str:
        """The last line that it printed."""
        text = self.log.read_text()
        assert "Traceback" not in text, text
        return text.replace("\r", "\n").strip().splitlines()[-1]


def run(*argv: str, log: Path, threads: int = 1, setup: Setup | None = None) -> Command:
    """A command from beginning to end."""
    command = Command(*argv, log=log, threads=threads, setup=setup)
    command.wait()
    return command


def launched(world: int) -> list[dict[str, str]]:
    """The environments that PyTorch's launcher gives the processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world)}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def together(world: int, *argv: str, log: Path, threads: int = 1, setup: Setup | None = None) -> list[Command]:
    """The processes of one run."""
    logs = [log.with_suffix(f".{rank}") for rank in range(world)]
    pairs = zip(logs, launched(world), strict=True)
    return [Command(*argv, log=file, environment=own, threads=threads, setup=setup) for file, own in pairs]


def pictures(folder: Path) -> dict[str, str]:
    """What is in the numbered pictures of a folder."""
    return {path.name: digest(path) for path in sorted(folder.glob("[0-9]*.png"))}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
