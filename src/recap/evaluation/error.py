"""What does reuse cost at each local evaluation? A run in which each one is held against a full evaluation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from recap.clock import now
from recap.core.cache import ContextCache
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead, guided
from recap.core.noise import image_generators
from recap.core.schedule import Schedule, Step
from recap.models.adapter import Adapter
from recap.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class LocalError:
    """The error of one local evaluation over all images: sub-step, where in the run, how many rows, how large."""

    step: int  # counted from 1 over all sub-steps
    decoded: float  # share of the tokens known to it
    rows: int  # rows that it renewed
    tokens: int  # tokens that were then drawn
    mean: float
    max: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class ErrorLog:
    """Errors of local evaluations, image by image, under the sub-step at which they were made."""

    def __init__(self, model: Adapter, schedule: Schedule) -> None:
        self.model, self.size = model, schedule.known + schedule.tokens
        self.seconds = 0.0  # that comparing has taken
        self.steps: dict[int, tuple[int, int, Step]] = {}  # by tokens decoded: number, rows renewed, step
        number, decoded = 0, schedule.known
        for group in schedule:
            for index, step in enumerate(group.steps):
                number += 1
                if index:
                    self.steps[decoded] = number, step.rows or group.tokens, step
                decoded += step.tokens
        self.errors: dict[int, list[Tensor]] = {decoded: [] for decoded in self.steps}

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        """The model's local evaluation, compared on the side."""
        features = self.model.local(canvas, cache, rows, wanted)
        _, _, step = self.steps[canvas.decoded]
        began = now(self.model.device)
        self.errors[canvas.decoded].append(evaluation_error(self.model, canvas, features, wanted, step.guidance))
        self.seconds += now(self.model.device) - began
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
    """A copy of `pipe` that draws the same images under `schedule`, and the log that fills meanwhile."""
    log = ErrorLog(pipe.model, schedule)
    other = copy.copy(pipe)
    other.model = pipe.model.replace(local=log.local)
    return other, log


def local_error(
    pipe: Pipeline,
    schedule: Schedule,
    labels: Sequence[int] | None = None,
    *,
    num: int | None = None,
    seed: int = 0,
    batch: int = 8,
    progress: bool = False,
) -> list[LocalError]:
    """Draw images, one for each label or `num`, and measure every local evaluation on the way.

    Image i is the one that `Pipeline` draws with the same seed and index.
    """
    if not schedule.local:
        raise ValueError(f"schedule {schedule} has no local evaluations to measure; build it with local=")
    num = len(labels) if labels is not None else num
    if num is None or num < 1 or batch < 1:
        raise ValueError(f"num is {num} and batch {batch}; draw at least one image, and one at a time")
    pipe, log = measured(pipe, schedule)
    pipe.progress = False
    batches = range(0, num, batch)
    with tqdm(total=len(batches) * len(schedule.steps), desc="error", unit="step", disable=not progress) as bar:
        for first in batches:
            indices = range(first, min(first + batch, num))
            pipe(
                None if labels is None else list(labels[indices.start : indices.stop]),
                num_images=len(indices),
                schedule=schedule,
                generator=image_generators(seed, indices),
                output_type="latent",
                callback_on_step_end=lambda *_: bar.update(),
            )
    return log.rows()
