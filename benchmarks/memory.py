"""Peak memory of grouped decoding on the CPU against what is predicted.

Two fresh processes with the same model and batch: one runs a single plain step (full evaluation and draw), the
other a whole grouped run. The second may exceed the first by 1.3 times the predicted cache and no more.

glibc keeps some freed tensors for later, in plain decoding as in grouped, and that counts here; with
`--allocator returning` it gives them back at once (MALLOC_MMAP_THRESHOLD_), which shows the memory in use.

    python benchmarks/memory.py [--model mar-base] [--full 12] [--local 4] [--batch 4] [--head-steps 100 50]
                                [--allocator default|returning]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import torch

from recap.core.canvas import Canvas
from recap.core.decode import grouped_decode
from recap.core.noise import Noise, Purpose, image_generators
from recap.core.presets import MAR_GUIDANCE, mar
from recap.core.schedule import Ramp, Schedule, from_counts
from recap.core.selection import RandomOrder
from recap.models.adapter import Adapter
from recap.models.registry import SIZES, adapt, build, randomize
from recap.planning.plan import plan

ALLOWED = 1.3


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--model", choices=sorted(MAR_GUIDANCE), default="mar-base")
    options.add_argument("--full", type=int, default=12)
    options.add_argument("--local", type=int, default=4)
    options.add_argument("--batch", type=int, default=4)
    options.add_argument("--head-steps", type=int, nargs=2, default=(100, 50), metavar=("FULL", "LOCAL"))
    options.add_argument("--allocator", choices=("default", "returning"), default="default")
    options.add_argument("--part", choices=("plain", "grouped"), help=argparse.SUPPRESS)
    return options


def grouped(args: argparse.Namespace) -> Schedule:
    guidance = Ramp(1.0, MAR_GUIDANCE[args.model])
    return mar(256, guidance=guidance, head_steps=tuple(args.head_steps), full=args.full, local=args.local)


def last_plain_step(schedule: Schedule) -> Schedule:
    """Two steps, the second of which is the last and largest of the plain run with as many sub-steps."""
    last = schedule.sizes[-1]
    heads = (schedule.steps[0].head_steps, schedule.steps[0].head_steps)
    return from_counts(256, [256 - last, last], guidance=schedule.steps[-1].guidance, head_steps=heads)


def run(args: argparse.Namespace) -> None:
    """One part, in a process of its own; prints its peak as JSON."""
    model = adapt(randomize(build(SIZES[args.model])))
    schedule = grouped(args)
    labels = torch.arange(args.batch)
    noise = Noise(image_generators(0, range(args.batch)), "cpu")
    if args.part == "plain":
        _one_step(model, labels, last_plain_step(schedule), noise)
    else:
        for _ in grouped_decode(model, labels, schedule, RandomOrder(), noise):
            pass
    print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


@torch.inference_mode()
def _one_step(adapter: Adapter, labels: torch.Tensor, schedule: Schedule, noise: Noise) -> None:
    """The last plain step alone: most tokens are known already, so that its encoder is at its longest."""
    canvas: Canvas = adapter.start(labels, noise.permutation(256), 2)
    canvas.decoded = schedule.sizes[0]
    (step,) = schedule.groups[1].steps
    wanted = slice(canvas.decoded, canvas.size)
    numbers = noise.at(1, Purpose.VALUES, canvas.order[:, wanted])
    canvas.commit(adapter.head.draw(adapter.full(canvas, None, wanted), step, 2, numbers))


def peaks(args: argparse.Namespace) -> Iterator[int]:
    for part in ("plain", "grouped"):
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part]
        returning = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)} if args.allocator == "returning" else {}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | returning)
        yield int(json.loads(done.stdout.splitlines()[-1])["peak"])


def main() -> int:
    args = parser().parse_args()
    if args.part:
        run(args)
        return 0
    schedule = grouped(args)
    cache = args.batch * plan(args.model, SIZES[args.model], schedule).cache_bytes
    plain, whole = peaks(args)
    share = (whole - plain) / cache
    print(f"{args.model} {schedule}, guided, batch {args.batch}, float32, {args.allocator} allocator")
    print(f"  one plain step, weights included  {plain / 2**20:8.1f} MiB")
    print(f"  the whole grouped run             {whole / 2**20:8.1f} MiB")
    print(f"  predicted cache                   {cache / 2**20:8.1f} MiB")
    print(f"  excess over the plain step        {share:8.3f} x cache (allowed {ALLOWED})")
    print(json.dumps({"plain": plain, "grouped": whole, "cache": cache, "excess_over_cache": share}))
    return 0 if share <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
