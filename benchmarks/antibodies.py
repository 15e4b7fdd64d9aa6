#!/usr/bin/env python3
"""Half-masked antibody sequences filled in by AntiBERTy: residues recovered and seconds, plain against grouped.

    python benchmarks/antibodies.py [--maskings 8] [--share 0.5] [--settings 1 8 16 8+8 8+24] [--threads 2]

Every sequence of benchmarks/antibodies.fasta is masked in several ways, with fixed seeds; the maskings of one
sequence are decoded together. A setting is T (plain steps) or T+T' (full and local evaluations, spread evenly).
Settings take turns for each sequence, so that whatever else the machine does falls on all of them; gains are those in
processor time, which does not count it. The spread is over maskings.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
import time
from pathlib import Path

import torch

from recap.antibodies import MASK, AntiBERTy
from recap.cli.fill import parse
from recap.filling import fill

HERE = Path(__file__).parent
SETTINGS = ("1", "4", "8", "16", "32", "4+4", "8+8", "16+16", "4+12", "8+24")


def masked(sequence: str, share: float, seed: int) -> str:
    """The sequence with a share of its residues hidden, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    hidden = set(torch.randperm(len(sequence), generator=generator)[: round(share * len(sequence))].tolist())
    return "".join(MASK if i in hidden else letter for i, letter in enumerate(sequence))


def recovered(truth: str, given: str, filled: str) -> tuple[int, int]:
    """Residues that are right, and residues that were masked."""
    spots = [i for i, letter in enumerate(given) if letter == MASK]
    return sum(truth[i] == filled[i] for i in spots), len(spots)


def evaluations(setting: str) -> tuple[int, int]:
    full, _, local = setting.partition("+")
    return int(full), int(local or 0)


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
    options.add_argument("--settings", nargs="+", default=SETTINGS)
    options.add_argument("--maskings", type=int, default=8)
    options.add_argument("--share", type=float, default=0.5)
    options.add_argument("--threads", type=int, default=2)
    return options


def main() -> None:
    args = parser().parse_args()
    torch.set_num_threads(args.threads)
    truths = parse(args.sequences.read_text(), str(args.sequences))
    model = AntiBERTy.load()
    right = {setting: [0] * args.maskings for setting in args.settings}
    seconds, busy = dict.fromkeys(args.settings, 0.0), dict.fromkeys(args.settings, 0.0)
    hidden = [0] * args.maskings
    fill(model.model, [model.encode(masked(truths[0], args.share, 0))], full=2, local=2)  # warm
    for number, truth in enumerate(truths):
        given = [masked(truth, args.share, 1000 * number + seed) for seed in range(args.maskings)]
        ids = [model.encode(sequence) for sequence in given]
        for setting in args.settings:
            full, local = evaluations(setting)
            chain = max(1, math.ceil(local / full))
            start, spent = time.perf_counter(), time.process_time()
            filled = [model.decode(row) for row in fill(model.model, ids, full=full, local=local, chain=chain)]
            seconds[setting] += time.perf_counter() - start
            busy[setting] += time.process_time() - spent
            for seed, (g, f) in enumerate(zip(given, filled, strict=True)):
                right[setting][seed] += recovered(truth, g, f)[0]
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
    for setting in args.settings:
        full, local = evaluations(setting)
        shares = [a / b for a, b in zip(right[setting], hidden, strict=True)]
        spread = f"{statistics.stdev(shares):.2%}" if len(shares) > 1 else ""
        plain = busy.get(str(full + local))
        gain = f"{plain / busy[setting]:.2f}x" if local and plain else ""
        total = sum(right[setting]) / sum(hidden)
        times = f"{1000 * seconds[setting] / sequences:.0f} | {1000 * busy[setting] / sequences:.0f}"
        print(f"| {full + local} | {setting} | {total:.2%} | {spread} | {times} | {gain} |")
    print(
        f"\nOne forward of transformers over such a batch: {1000 * theirs:.0f} ms; "
        f"one full evaluation of the adapter: {1000 * ours:.0f} ms."
    )


if __name__ == "__main__":
    main()
