"""Fuzz every reader of what comes from outside, for so many seconds each; prints counts and what was found.

An input that raises anything but the errors which the command line turns into one line, that takes longer than
SLOW seconds, or that runs code of a file, is a finding: it is kept in --out and printed with its place.

    python -m benchmarks.fuzz [--targets pickles configs ...] [--seconds 20] [--engine random|atheris] [--out found]

The engine `random` changes known inputs by chance and needs nothing else; `atheris` is guided by coverage of this
library (pip install atheris). Each target runs in a process of its own with bounded memory.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.targets import Target

SLOW = 10.0  # seconds for one input
MEMORY = 8 * 2**30  # bytes of address space
LONGEST = 1 << 16  # bytes of an input
EDGES = [
    value.to_bytes(size, "little") for size in (1, 2, 4, 8) for value in (0, 1, 2 ** (8 * size - 1), 256**size - 1)
]


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--targets", nargs="+", metavar="NAME", help="default: all")
    options.add_argument("--seconds", type=float, default=20.0, help="for each target (default 20)")
    options.add_argument("--engine", choices=("random", "atheris"), default="random")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", default="found", help="folder for inputs that are findings (default found)")
    options.add_argument("--one", help=argparse.SUPPRESS)
    return options


def changed(data: bytes, rng: random.Random, words: tuple[bytes, ...], others: list[bytes]) -> bytes:
    """A few changes by chance: bytes, runs, edges of integers, words, and pieces of other inputs."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        other = rng.choice(others)
        first = rng.randrange(len(other) + 1)
        pieces: list[Callable[[], bytes]] = [
            lambda: rng.randbytes(1),
            lambda: rng.choice(EDGES),
            lambda: b"",
            lambda at=at, end=end: bytes(content[at:end]) * 2,  # type: ignore[misc]
            lambda other=other, first=first: other[first : first + rng.randrange(64)],  # type: ignore[misc]
            *([lambda: rng.choice(words)] * 2 if words else []),
        ]
        piece = rng.choice(pieces)()
        stop = rng.choice((at, at + 1, at + len(piece), end))
        content[at:stop] = piece
    return bytes(content[:LONGEST])


class Judge:
    """Runs a target on inputs, and writes down what it finds."""

    def __init__(self, target: Target, folder: Path, out: Path) -> None:
        self.target, self.folder, self.out = target, folder, out
        self.count, self.refused = 0, 0
        self.found: dict[str, str] = {}

    def __call__(self, data: bytes) -> None:
        self.count += 1
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.target.run(data, self.folder)
        except self.target.errors:
            self.refused += 1
        except Exception as error:
            self.keep(data, error)
        if time.perf_counter() - began > SLOW:
            self.keep(data, TimeoutError(f"{time.perf_counter() - began:.0f} seconds"))

    def keep(self, data: bytes, error: Exception) -> None:
        """One input for each kind of error and place."""
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if "recap" in frame.filename]
        place = f"{Path(places[-1].filename).name}:{places[-1].lineno}" if places else "nowhere"
        kind = f"{type(error).__name__} at {place}"
        if kind not in self.found:
            self.found[kind] = str(error)[:200]
            self.out.mkdir(parents=True, exist_ok=True)
            name = hashlib.sha256(data).hexdigest()[:12]
            (self.out / name).write_bytes(data)
            print(json.dumps({"found": kind, "message": str(error)[:200], "input": name}), flush=True)


def one(args: argparse.Namespace) -> None:
    """A target, in a process of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    if args.engine == "atheris":
        atheris: Any = importlib.import_module("atheris")
        with atheris.instrument_imports(include=["recap"]):
            from benchmarks.targets import TARGETS
    else:
        from benchmarks.targets import TARGETS
    import torch

    torch.set_num_threads(1)
    target = TARGETS[args.one]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        judge = Judge(target, folder, Path(args.out).absolute() / args.one)
        seeds = target.seeds(folder)
        for seed in seeds:
            judge(seed)
        if args.engine == "atheris":
            corpus = Path(place) / "corpus"
            corpus.mkdir()
            for index, seed in enumerate(seeds):
                (corpus / str(index)).write_bytes(seed)
            options = [f"-max_total_time={int(args.seconds)}", f"-max_len={LONGEST}", f"-seed={args.seed + 1}"]
            atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=0", "-timeout=120", str(corpus)], judge)
            atheris.Fuzz()  # ends the process
        rng, began = random.Random(args.seed), time.monotonic()
        pool = list(seeds)
        while time.monotonic() - began < args.seconds:
            data = changed(rng.choice(pool), rng, target.words, pool)
            before = judge.refused
            judge(data)
            if judge.refused == before and len(pool) < 256:  # it was taken: a place to go on from
                pool.append(data)
        print(json.dumps({"count": judge.count, "refused": judge.refused, "seconds": time.monotonic() - began}))


def report(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a target in its process; how many inputs, how long, and what was found."""
    command = [sys.executable, "-m", "benchmarks.fuzz", "--one", name, "--engine", args.engine]
    command += ["--seconds", str(args.seconds), "--seed", str(args.seed), "--out", args.out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600 + 2 * args.seconds)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    found = [line for line in lines if "found" in line]
    result = {
        "target": name,
        "count": 0,
        "seconds": 0.0,
        **{k: v for line in lines if "count" in line for k, v in line.items()},
    }
    finished = re.search(r"Done (\d+) runs in (\d+) second", done.stderr)
    if finished:
        result |= {"count": int(finished[1]), "seconds": float(finished[2])}
    if done.returncode:  # killed, or the engine itself gave up
        found.append({"found": f"exit status {done.returncode}", "message": done.stderr[-400:]})
    return {**result, "findings": found}


def main() -> int:
    args = parser().parse_args()
    if args.one:
        one(args)
        return 0
    from benchmarks.targets import TARGETS

    names = args.targets or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise SystemExit(f"no target is called {unknown[0]}; there are {', '.join(TARGETS)}")
    results = []
    for name in names:
        results.append(report(name, args))
        last = results[-1]
        print(
            f"{name:<12} {last['count']:>8} inputs {last['seconds']:>6.0f} s  {len(last['findings'])} findings",
            flush=True,
        )
        for finding in last["findings"]:
            print(f"    {finding['found']}: {finding['message']}")
    total = {"inputs": sum(r["count"] for r in results), "seconds": sum(r["seconds"] for r in results)}
    print(json.dumps({"engine": args.engine, **total, "targets": results}))
    return 1 if any(r["findings"] for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
