"""What does reuse cost at each local evaluation? A run in which each one is held against a full evaluation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead, guided
from recap.core.schedule import Schedule
from recap.models.adapter import Adapter, ModelWrapper
from recap.pipelines.base import ModelPipeline
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
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
    """A model whose local evaluations are compared on the side; it watches the run, to know whose they are."""

    def __init__(self, model: Adapter, schedule: Schedule) -> None:
        super().__init__(model)
        self.steps, self.ends = schedule.steps, list(accumulate(schedule.sizes, initial=schedule.known))[1:]
        self.latest: list[float] = []  # filled in place: the same model at other lengths writes into it too
        self.errors: dict[int, dict[Hashable, float]] = {}  # by sub-step; images that are drawn again replace theirs

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        features = self.model.local(canvas, cache, rows, wanted)
        step = self.steps[bisect_right(self.ends, canvas.decoded)]  # a threshold may have let steps pass before
        self.latest[:] = evaluation_error(self.model, canvas, features, wanted, step.guidance).tolist()
        return features

    def step(self, works: Sequence[Hashable], step: int, canvas: Canvas) -> None:
        # rows after the works' own fill up a batch; without a local evaluation there is nothing to note
        self.errors.setdefault(step, {}).update(zip(works, self.latest, strict=False))
        self.latest.clear()

    def done(self, results: Sequence[Done | Failed]) -> None:
        pass

    def rows(self, schedule: Schedule) -> list[LocalError]:
        """What was noted, where in the run the schedule has it; evaluations that never took place are left out."""
        found, number, size = [], 0, schedule.known + schedule.tokens
        for decoded, group in schedule.contexts():
            for step in group.steps:
                number += 1
                if errors := self.errors.get(number, {}).values():
                    row = LocalError(number, decoded / size, group.tokens, step.tokens, fmean(errors), max(errors))
                    found.append(row)
                decoded += step.tokens
        return found


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
        p, q = (model.head.log_shares(guided(x, canvas.branches, guidance)) for x in logits)  # (B, n, V)
        # rounding can push a divergence of 0 a little below it
        return (p.exp() * (p - q)).sum(-1).mean(-1).clamp_min(0.0)
    pairs = ((features - exact).double(), exact.double())
    gap, size = (x.square().sum((1, 2)).view(canvas.branches, -1).sum(0).sqrt() for x in pairs)  # (B)
    return gap / size


def error_name(model: Adapter) -> str:
    """What the errors of this model are, for a table or an axis."""
    return "KL(exact || local)" if isinstance(model.head, CategoricalHead) else "relative error of features"


def local_error(
    pipe: ModelPipeline, works: Sequence[Work], *, progress: bool = False
) -> tuple[list[LocalError], Tensor]:
    """Draw images of one schedule, and measure each local evaluation on the way; the tokens are their own."""
    schedule = works[0].schedule
    log = ErrorLog(pipe.model, schedule)
    bar = tqdm(
        draw(pipe.with_model(log), works, log, decode=False), total=len(works), desc="error", disable=not progress
    )
    tokens = torch.stack([result.tokens for result in bar])
    return log.rows(schedule), tokens
