"""What does reuse cost at each local evaluation? A run in which each one is held against a full evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recap.bench.timing import synchronized_time
from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead, guided
from recap.core.schedule import Schedule, Step
from recap.models.adapter import Adapter, ModelWrapper
from recap.pipelines import Pipeline
from recap.runs.draw import draw
from recap.runs.works import Work
from recap.view.progress import tqdm


@dataclass(frozen=True, slots=True)
class LocalError:
    """The error of one local evaluation over all images: sub-step, where in the run, how many rows, how large."""

    step: int  # counted from 1 over all sub-steps
    decoded: float  # share of the tokens known to it
    rows: int  # rows that it renewed
    tokens: int  # tokens that were then drawn
    mean: float
    max: float


class ErrorLog(ModelWrapper):
    """A model whose local evaluations are compared on the side: errors by sub-step, image by image."""

    def __init__(self, model: Adapter, schedule: Schedule) -> None:
        super().__init__(model)
        self.size = schedule.known + schedule.tokens
        self.seconds = 0.0  # that comparing has taken
        self.steps: dict[int, tuple[int, int, Step]] = {}  # by tokens decoded: number, rows renewed, step
        number, decoded = 0, schedule.known
        for group in schedule:
            for index, step in enumerate(group.steps):
                number += 1
                if index:
                    self.steps[decoded] = number, group.tokens, step
                decoded += step.tokens
        self.errors: dict[int, list[Tensor]] = {decoded: [] for decoded in self.steps}

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        features = self.model.local(canvas, cache, rows, wanted)
        _, _, step = self.steps[canvas.decoded]
        began = synchronized_time(self.device)
        self.errors[canvas.decoded].append(evaluation_error(self.model, canvas, features, wanted, step.guidance))
        self.seconds += synchronized_time(self.device) - began
        return features

    def rows(self) -> list[LocalError]:
        """One row for each local evaluation that was seen, in order."""
        table = []
        for decoded, (number, rows, step) in self.steps.items():
            if self.errors[decoded]:
                errors = torch.cat(self.errors[decoded])
                mean, largest = float(errors.mean()), float(errors.max())
                table.append(LocalError(number, decoded / self.size, rows, step.tokens, mean, largest))
        return table


def evaluation_error(
    model: Adapter, canvas: Canvas, features: Tensor, wanted: slice, guidance: float = 1.0
) -> Tensor:
    """How far `features` of the rows `wanted` are from a full evaluation of the canvas, for each image (B).

    For ids: KL(exact || local) of the guided distributions, mean over rows. For latents: the relative error
    |local - exact| / |exact| of the features, all branches together. Neither the canvas, nor a cache, nor any
    random number is touched.
    """
    exact = model.full(canvas, None, wanted)  # (branches * B, n, D)
    if isinstance(model.head, CategoricalHead):
        logits = (model.head.logits(x).double() for x in (exact, features))
        p, q = (guided(x, canvas.branches, guidance).log_softmax(-1) for x in logits)  # (B, n, V)
        # rounding can push a divergence of 0 a little below it
        return (p.exp() * (p - q)).sum(-1).mean(-1).clamp_min(0.0)
    pairs = ((features - exact).double(), exact.double())
    gap, size = (x.square().sum((1, 2)).view(canvas.branches, -1).sum(0).sqrt() for x in pairs)  # (B)
    return gap / size


def error_name(model: Adapter) -> str:
    """What the errors of this model are, for a table or an axis."""
    return "KL(exact || local)" if isinstance(model.head, CategoricalHead) else "relative error of features"


def measured(pipe: Pipeline, schedule: Schedule) -> tuple[Pipeline, ErrorLog]:
    """A copy of `pipe` that generates the same images under `schedule`, and the log that fills meanwhile."""
    other = copy.copy(pipe)
    other.model = log = ErrorLog(pipe.model, schedule)
    return other, log


def local_error(pipe: Pipeline, works: Sequence[Work], *, progress: bool = False) -> list[LocalError]:
    """Draw images of one schedule that has local evaluations, and measure each of these on the way."""
    pipe, log = measured(pipe, works[0].schedule)
    for _ in tqdm(draw(pipe, works, decode=False), total=len(works), desc="error", disable=not progress):
        pass
    return log.rows()
