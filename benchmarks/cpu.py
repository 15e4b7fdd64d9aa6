"""What the engine for CPUs gains, in runs that take turns: against an earlier checkout, torch and the official code.

    python benchmarks/cpu.py --before ../earlier --json docs/performance/cpu.json
    RECAP_OTHERS=others python benchmarks/cpu.py --only official      # the folder is that of benchmarks/plug.py

Every figure is the median of ratios of runs side by side, with their range. `--before` is a checkout of the version
to compare with; it runs in a process of its own, which waits while the other one works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from recap.__main__ import WAITING

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.update(WAITING)  # as commands wait; torch, which reads it, is imported below

import torch
from torch import nn

import recap
from recap.bench.measure import machine
from recap.core.canvas import Draw
from recap.core.noise import Noise, image_generators
from recap.engine import with_engine
from recap.engine.packed import PackedLinear, twin
from recap.models.adapter import Adapter
from recap.runs.files import write_json

ROOT = Path(__file__).parents[1]
MODELS = {  # and the order of plain decoding that earlier versions have too
    "flowers-maskgit": "confidence",
    "flowers-mage": "confidence",
    "flowers-mar": "random",
}
OFFICIAL = ("mage", "mar", "nat")  # MAGE-B, MAR-B and AutoNAT-L
WORKER = """
import sys, time, recap
clock = getattr(time, sys.argv[2])
pipe = recap.load(sys.argv[1])
pipe.progress = False
asked = dict(num_images=1) if not pipe.model.classes else dict(labels=[3])
def run(schedule, images=1):
    began = clock()
    for seed in range(images):
        pipe(**asked, schedule=schedule, seed=seed, output_type="latent")
    return clock() - began
run("4")
print("ready", flush=True)
for line in sys.stdin:
    schedule, images = line.split()
    print(run(schedule, int(images)), flush=True)
"""
BUSY = "while True: pass"


class Worker:
    """Another process that samples when it is told to, with the package of a checkout."""

    def __init__(self, root: Path, model: str, processor: bool = False) -> None:
        """`processor`: seconds of one thread's processor time, which others on the machine change less."""
        environment = {**os.environ, "PYTHONPATH": str(root / "src")}
        if processor:
            environment["OMP_NUM_THREADS"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, model, "process_time" if processor else "perf_counter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            cwd=root,
        )
        assert self.read() == "ready", f"{root} does not run"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __call__(self, schedule: str, images: int = 1) -> float:
        assert self.process.stdin is not None
        print(schedule, images, file=self.process.stdin, flush=True)
        return float(self.read())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def in_turn(one: Callable[[], float], other: Callable[[], float], repeat: int) -> dict[str, Any]:
    """Seconds of both and their ratios, whichever comes first taking turns."""
    seconds: tuple[list[float], list[float]] = [], []
    for turn in range(repeat):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[which].append((one, other)[which]())
    ratios = [a / b for a, b in zip(*seconds, strict=True)]
    return {
        "ratio": median(ratios),
        "range": [min(ratios), max(ratios)],
        "seconds": [median(times) for times in seconds],
        "repeat": repeat,
    }


def timed(call: Callable[[], object], times: int = 1) -> Callable[[], float]:
    """Seconds of a call, the mean of some."""

    def run() -> float:
        began = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - began) / times

    run()
    return run


def plain_steps(before: Path, model: str, repeat: int, processor: bool = False) -> dict[str, Any]:
    """64 plain steps of one image, the earlier version's seconds over ours."""
    workers, steps = [Worker(root, model, processor) for root in (before, ROOT)], f"64:order={MODELS[model]}"
    try:
        return in_turn(lambda: workers[0](steps), lambda: workers[1](steps), repeat)
    finally:
        for worker in workers:
            worker.end()


def half_decoded(model: Adapter) -> tuple[Any, Any]:
    """A canvas of one image whose first half is known, and a cache."""
    branches = 2 if model.guidable else 1
    noise = Noise(image_generators(0, [0]), "cpu")
    labels = torch.tensor([3]) if model.classes else None
    canvas = model.start(labels, noise.permutation(model.num_tokens), branches)
    schedule = recap.cosine(model.num_tokens, full=32, local=32, guidance=2.0 if branches == 2 else 1.0)
    cache = model.new_cache(canvas, schedule)
    half, latents = model.num_tokens // 2, canvas.tokens.ndim == 3
    known = noise.normal(half, canvas.tokens.shape[-1]) if latents else (noise.uniform(half) * 1000).long()
    canvas.commit(Draw(known))
    return canvas, cache


@torch.inference_mode()
def evaluations(name: str, repeat: int) -> dict[str, Any]:
    """A full evaluation of all that is masked, as a share of the packed product's rate, and a local one of 8 rows."""
    model = with_engine(recap.load(name).model, "onednn")
    canvas, cache = half_decoded(model)
    size, half = canvas.size, canvas.decoded
    full = timed(lambda: model.full(canvas, cache, slice(half, size)), 2)
    layer = twin(nn.Linear(model.config.width, 4 * model.config.width), {})
    rows = torch.randn(canvas.branches * (size + 1), model.config.width)
    assert isinstance(layer, PackedLinear)
    product = timed(lambda: layer(rows), 20)
    operations = 2 * rows.shape[0] * layer.weight.numel()
    needed = canvas.branches * model.config.full_flops(half)
    shares = in_turn(full, product, repeat)
    share = median([needed / full() / (operations / product()) for _ in range(repeat)])
    canvas.decoded += 4
    local = timed(lambda: model.local(canvas, cache, slice(half, half + 8), slice(half + 4, half + 8)), 5)
    return {
        "share_of_packed_rate": share,
        "full_ms": 1e3 * shares["seconds"][0],
        "packed_gflops": operations / shares["seconds"][1] / 1e9,
        "local_share": in_turn(local, full, repeat),
    }


@torch.inference_mode()
def official(item: str, repeat: int) -> dict[str, Any]:
    """The forward of an official object, its seconds over those of our full evaluation of the same."""
    sys.path[:0] = [str(ROOT)]
    from benchmarks import plug

    plug.add_paths()
    torch.manual_seed(0)
    net: Any = plug.BUILDERS[item]()
    net.eval()
    plug.unzero(net)
    plain = recap.wrap(net)
    model = with_engine(plain, "onednn")
    canvas, _ = half_decoded(model)
    labels = torch.tensor([3]) if model.classes else None
    size = canvas.size
    theirs = timed(lambda: plain.plain(canvas, labels))
    ours = timed(lambda: model.prediction(model.full(canvas, None, slice(0, size))))
    eager = timed(lambda: plain.prediction(plain.full(canvas, None, slice(0, size))))
    return {"against_official": in_turn(theirs, ours, repeat), "against_eager": in_turn(eager, ours, repeat)}


def busy(repeat: int, cores: int = 2) -> dict[str, Any]:
    """16+16 evaluations of two images while other processes keep the cores busy, over those on a quiet machine."""
    worker = Worker(ROOT, "flowers-maskgit")

    def crowded() -> float:
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
        try:
            return worker("16+16", 2)
        finally:
            for other in others:
                other.kill()
                other.wait()

    try:
        return in_turn(crowded, lambda: worker("16+16", 2), repeat)
    finally:
        worker.end()


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--before", type=Path, help="a checkout of the version to compare with")
    options.add_argument("--only", nargs="+", choices=("before", "processor", "evaluations", "official", "busy"))
    options.add_argument("--repeat", type=int, default=7)
    options.add_argument("--json", type=Path, metavar="FILE")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    parts: dict[str, Callable[[], Any]] = {
        "evaluations": lambda: {name: evaluations(name, args.repeat) for name in MODELS},
        "busy": lambda: busy(args.repeat),
    }
    if args.before is not None:
        parts["before"] = lambda: {name: plain_steps(args.before, name, args.repeat) for name in MODELS}
        parts["processor"] = lambda: {name: plain_steps(args.before, name, args.repeat, True) for name in MODELS}
    others = Path(os.environ.get("RECAP_OTHERS", "others"))
    if found := [item for item in OFFICIAL if (others / item).is_dir()]:
        parts["official"] = lambda: {item: official(item, args.repeat) for item in found}
    result: dict[str, Any] = {"machine": machine("cpu")}
    if args.json and args.json.exists():
        result = json.loads(args.json.read_text()) | result
    for part in args.only or parts:
        if part not in parts:
            needs = (
                "--before" if part in ("before", "processor") else f"{', '.join(OFFICIAL)} in {others} (RECAP_OTHERS)"
            )
            raise SystemExit(f"{part} needs {needs}; see --help")
        result[part] = parts[part]()
        print(json.dumps({part: result[part]}, indent=1), flush=True)
        if args.json:
            write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
