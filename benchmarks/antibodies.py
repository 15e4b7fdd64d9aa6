#!/usr/bin/env python3
"""Half-masked antibody sequences filled in by AntiBERTy: residues recovered and seconds, plain against grouped.

    python -m benchmarks.antibodies [--maskings 8] [--share 0.5] [--schedule 1 8 16 8+8 8+24:chain=3] [--threads 2]

Every sequence of benchmarks/antibodies.fasta is masked in several ways, with fixed seeds; the maskings of one
sequence are decoded together by examples/antibodies.py. Schedules take turns for each sequence, so that whatever else
the machine does falls on all of them; gains are those in processor time, which does not count it. The spread is over
maskings.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path

import torch
from examples.antibodies import MASK, AntiBERTy, parse

from recap import SamplingOptions

HERE = Path(__file__).parent
SCHEDULES = ("1", "4", "8", "16", "32", "4+4", "8+8", "16+16", "4+12:chain=3", "8+24:chain=3")


def masked(sequence: str, share: float, seed: int) -> str:
    """The sequence with a share of its residues hidden, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    hidden = set(torch.randperm(len(sequence), generator=generator)[: round(share * len(sequence))].tolist())
    return "".join(MASK if i in hidden else letter for i, letter in enumerate(sequence))


def recovered(truth: str, given: str, filled: str) -> int:
    """Masked residues that are right."""
    return sum(letter == MASK and right == found for right, letter, found in zip(truth, given, filled, strict=True))


@torch.inference_mode()
def one_step(model: AntiBERTy, batch: list[list[int]]) -> tuple[float, float]:
    """Seconds of one forward of transformers, and of one full evaluation of the adapter."""
    adapter = model.model.at(len(batch[0]))
    ids = torch.tensor(batch)
    canvas = adapter.start(None, torch.arange(ids.shape[1]).repeat(len(ids), 1), 1)
    canvas.tokens.copy_(ids)
    everything = slice(0, ids.shape[1])
    theirs, ours = [], []
    for _ in range(5):
        start = time.perf_counter()
        adapter.forward(ids)
        middle = time.perf_counter()
        adapter.prediction(adapter.full(canvas, None, everything))
        theirs.append(middle - start)
        ours.append(time.perf_counter() - middle)
    return min(theirs), min(ours)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description="residues recovered and seconds, plain against grouped")
    options.add_argument("--sequences", type=Path, default=HERE / "antibodies.fasta")
    options.add_argument("--schedule", nargs="+", default=SCHEDULES)
    options.add_argument("--maskings", type=int, default=8)
    options.add_argument("--share", type=float, default=0.5)
    options.add_argument("--threads", type=int, default=2)
    return options


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    truths = parse(args.sequences.read_text(), str(args.sequences))
    model = AntiBERTy.load()
    right = {schedule: [0] * args.maskings for schedule in args.schedule}
    seconds, busy = dict.fromkeys(args.schedule, 0.0), dict.fromkeys(args.schedule, 0.0)
    hidden = [0] * args.maskings
    model.fill([masked(truths[0], args.share, 0)], "2+2")  # warm
    for number, truth in enumerate(truths):
        given = [masked(truth, args.share, 1000 * number + seed) for seed in range(args.maskings)]
        for schedule in args.schedule:
            start, spent = time.perf_counter(), time.process_time()
            filled = model.fill(given, schedule)
            seconds[schedule] += time.perf_counter() - start
            busy[schedule] += time.process_time() - spent
            for seed, (g, f) in enumerate(zip(given, filled, strict=True)):
                right[schedule][seed] += recovered(truth, g, f)
        for seed, g in enumerate(given):
            hidden[seed] += g.count(MASK)
    theirs, ours = one_step(model, [model.encode(truths[0])] * args.maskings)
    lengths = [len(truth) for truth in truths]
    print(
        f"{len(truths)} sequences of {min(lengths)} to {max(lengths)} residues, each with {args.maskings} "
        f"masking{'s' * (args.maskings > 1)} of {args.share:.0%} ({sum(hidden)} masked residues), "
        f"batch {args.maskings}, {args.threads} thread{'s' * (args.threads > 1)}, float32, "
        f"torch {torch.__version__}, {platform.machine()}\n"
    )
    print(
        "| steps | full + local | recovered | spread | ms a sequence | processor ms | against as many plain steps |"
    )
    print("|---|---|---|---|---|---|---|")
    sequences = len(truths) * args.maskings
    for schedule in args.schedule:
        options = SamplingOptions.from_text(schedule)
        full, local = options.full or 0, options.local or 0
        shares = [a / b for a, b in zip(right[schedule], hidden, strict=True)]
        spread = f"{statistics.stdev(shares):.2%}" if len(shares) > 1 else ""
        plain = busy.get(str(full + local))
        gain = f"{plain / busy[schedule]:.2f}x" if local and plain else ""
        total = sum(right[schedule]) / sum(hidden)
        times = f"{1000 * seconds[schedule] / sequences:.0f} | {1000 * busy[schedule] / sequences:.0f}"
        print(f"| {full + local} | {full}{f'+{local}' * bool(local)} | {total:.2%} | {spread} | {times} | {gain} |")
    print(
        f"\nOne forward of transformers over such a batch: {1000 * theirs:.0f} ms; "
        f"one full evaluation of the adapter: {1000 * ours:.0f} ms."
    )


if __name__ == "__main__":
    main()
