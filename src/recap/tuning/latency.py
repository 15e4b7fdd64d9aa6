"""What a schedule takes: seconds of every sub-step, fitted to a few runs that take turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from recap.bench.timing import synchronized_time
from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.engine import WARM_RUNS
from recap.pipelines import Pipeline
from recap.runs.draw import begin, images_together
from recap.runs.works import Work

ROUNDS = 3  # of the runs in turn

Size = tuple[float, float, float]  # what the time of a sub-step is linear in


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds an image: of sub-steps by whether they are local, and of the tokenizer at the end."""

    weights: dict[bool, Tensor]
    tokenizer: float

    def seconds(self, schedule: Schedule) -> float:
        steps = sum(float(self.weights[local] @ torch.tensor(size)) for local, size in substeps(schedule))
        return steps + self.tokenizer


def substeps(schedule: Schedule) -> Iterator[tuple[bool, Size]]:
    """Of every sub-step whether it is local, and its size.

    A full evaluation computes all rows and ranks the masked ones; a local one does both with the rows that it
    recomputes. Both draw what they commit.
    """
    size = schedule.known + schedule.tokens
    for decoded, group in schedule.contexts():
        target = slice(decoded, min(decoded + group.rows, size))
        recomputed = group.recomputed(target, size)
        for index, step in enumerate(group.steps):
            rows = recomputed.stop - recomputed.start if index else decoded
            yield index > 0, (1.0, rows, step.tokens)


def measured(pipe: Pipeline, label: int | None = None, rounds: int = ROUNDS) -> Latency:
    """Time runs of several kinds in turn, so that a busy machine is as slow for one as for the other."""
    steps, size = pipe.schedule(pipe.options.plain()).full, images_together(pipe)
    evaluations = (
        (steps, 0, 1),
        (-(-steps // 4), 0, 1),
        (-(-steps // 2), steps // 2, 1),
        (-(-steps // 4), steps // 2, 2),
    )
    runs = [
        pipe.works(
            None if label is None else [label] * size,
            size,
            SamplingOptions(full=full, local=min(local, full * chain), warmup=0, chain=chain),
            seed=0,
        )
        for full, local, chain in evaluations
    ]
    seconds: dict[tuple[int, int], list[float]] = defaultdict(list)
    tokenizer = []
    for number in range(rounds + WARM_RUNS[pipe.engine]):
        for kind, works in enumerate(runs):
            times = clocked(pipe, works)
            if number >= WARM_RUNS[pipe.engine]:
                tokenizer.append(times.pop())
                for step, taken in enumerate(times):
                    seconds[kind, step].append(taken)
    sizes: dict[bool, list[Size]] = {False: [], True: []}
    taken_by: dict[bool, list[float]] = {False: [], True: []}
    for kind, works in enumerate(runs):
        for step, (local, row) in enumerate(substeps(works[0].schedule)):
            sizes[local].append(row)
            taken_by[local].append(median(seconds[kind, step]))
    return Latency({local: fitted(sizes[local], taken_by[local]) for local in sizes}, median(tokenizer))


def clocked(pipe: Pipeline, works: Sequence[Work]) -> list[float]:
    """Seconds an image of every sub-step, and at the end of the tokenizer."""
    times = [synchronized_time(pipe.device)]
    tokens = torch.empty(0)
    for canvas in begin(pipe, works, len(works)):
        times.append(synchronized_time(pipe.device))
        tokens = canvas.tokens
    if pipe.tokenizer is not None:
        pipe.decode(tokens, "pt")
    times.append(synchronized_time(pipe.device))
    return [(later - earlier) / len(works) for earlier, later in pairwise(times)]


def fitted(sizes: Sequence[Size], seconds: Sequence[float]) -> Tensor:
    """The weights under which sizes come nearest to the seconds; zero where there is nothing to fit."""
    if not sizes:
        return torch.zeros(3)
    rows, values = torch.tensor(sizes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    return torch.linalg.lstsq(rows, values.unsqueeze(1), driver="gelsd").solution.squeeze(1).float()
