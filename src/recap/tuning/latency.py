"""What a schedule takes: seconds of every sub-step, fitted to a few runs that take turns."""

from __future__ import annotations

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
from recap.pipelines.base import ModelPipeline as Pipeline
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
    steps, size, warm = (
        pipe.schedule(pipe.options.plain(pipe.model.num_tokens)).full,
        images_together(pipe, pipe.schedule()),
        WARM_RUNS[pipe.engine],
    )
    half, quarter, labels = steps // 2, -(-steps // 4), None if label is None else [label] * size
    kinds = [(steps, 0, 1), (quarter, 0, 1), (steps - half, half, 1), (quarter, min(half, 2 * quarter), 2)]
    asked = [SamplingOptions(full=full, local=local, warmup=0, chain=chain) for full, local, chain in kinds]
    runs = [pipe.trial(size, options, labels=labels) for options in asked]
    times = torch.tensor([[t for works in runs for t in clocked(pipe, works)] for _ in range(warm + rounds)])
    taken = iter(times[warm:].median(dim=0).values.tolist())  # the sub-steps of all runs, each with its tokenizer
    seen: dict[bool, list[tuple[Size, float]]] = {False: [], True: []}
    tokenizer = []
    for works in runs:
        for local, sizes in substeps(works[0].schedule):
            seen[local].append((sizes, next(taken)))
        tokenizer.append(next(taken))
    return Latency({local: fitted(pairs) for local, pairs in seen.items()}, median(tokenizer))


def clocked(pipe: Pipeline, works: Sequence[Work]) -> list[float]:
    """Seconds an image of every sub-step, and at the end of the tokenizer."""
    times = [synchronized_time(pipe.device)]
    tokens = torch.empty(0)
    for canvas in begin(pipe, works, len(works)):
        times.append(synchronized_time(pipe.device))
        tokens = canvas.tokens
    if pipe.decoder is not None:
        pipe.decode(tokens, "pt")
    times.append(synchronized_time(pipe.device))
    return [(later - earlier) / len(works) for earlier, later in pairwise(times)]


def fitted(pairs: Sequence[tuple[Size, float]]) -> Tensor:
    """The weights under which sizes come nearest to their seconds; zero where there is nothing to fit."""
    if not pairs:
        return torch.zeros(3)
    sizes, seconds = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    return torch.linalg.lstsq(sizes, seconds.unsqueeze(1), driver="gelsd").solution.squeeze(1).float()
