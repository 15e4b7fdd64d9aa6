"""The schedule that agrees best with the exact model: candidates that fill a given time, and runs of these."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from recap.core.heads import CategoricalHead
from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.pipelines.base import ModelPipeline as Pipeline
from recap.runs.works import Work
from recap.tuning.agreement import agreement
from recap.tuning.latency import Latency
from recap.view.progress import tqdm

ROUNDS = 3  # in each as many images as in all before, and half of the schedules
FINALISTS = 5  # schedules that are measured on all images, at least
WARMTH = 0.5  # of a nat for each nat of choice that plain decoding has and a schedule has not: docs/tune.md
RATIOS = (1 / 3, 1 / 2, 1.0, 2.0, 3.0)  # local evaluations for each full one
CHOICES = (  # among which rows local evaluations choose, where there is a confidence
    SamplingOptions(order="confidence", target=1.0),
    SamplingOptions(order="informed", target=1.0),
    SamplingOptions(order="informed", target=2.0),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """A time for an image: seconds, or a share of what plain decoding in as many sub-steps takes."""

    amount: float
    absolute: bool = False

    @classmethod
    def from_text(cls, text: str) -> Budget:
        match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(s?)\s*", text)
        if match is None or not 0 < float(match[1]) < math.inf:
            raise ValueError(
                f"budget {text!r} is no time; write a share of the time of plain decoding, such as 0.5, or seconds "
                f"an image, such as 0.4s"
            )
        return cls(float(match[1]), bool(match[2]))

    def seconds(self, plain: float) -> float:
        return self.amount if self.absolute else self.amount * plain


@dataclass(frozen=True, slots=True)
class Trial:
    """A schedule, the time that it is predicted to take, and what its calibration runs lose."""

    options: SamplingOptions
    seconds: float
    loss: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))  # (W)
    choice: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64))  # (W)
    usual: float = 0.0  # choice of plain decoding

    @property
    def errors(self) -> Tensor:
        """By which schedules are compared (W): the loss, and a part of the choice that is missing on average.

        More choice than plain decoding has gains nothing: images would only become colder.
        """
        return self.loss + WARMTH * (self.usual - self.choice) * bool(self.choice.mean() < self.usual)

    @property
    def error(self) -> float:
        return float(self.errors.mean())

    def drawing(self, pipe: Pipeline, works: Sequence[Work]) -> Trial:
        """With the agreement of further images."""
        loss, choice = (part.sum(dim=1) for part in agreement(pipe, works, pipe.batch_size))
        return replace(self, loss=torch.cat([self.loss, loss]), choice=torch.cat([self.choice, choice]))

    def more_than(self, other: Trial) -> tuple[float, float]:
        """How much larger its error is on the images that both have drawn, and the standard error of that."""
        both = min(len(self.loss), len(other.loss))
        apart = self.errors[:both] - other.errors[:both]
        return float(apart.mean()), float(apart.std() / both**0.5) if both > 1 else math.inf


def candidates(pipe: Pipeline, latency: Latency, seconds: float) -> list[Trial]:
    """Of every kind of schedule the longest that fits, with no images yet; they begin with plain decoding."""
    found: dict[tuple[Schedule, str | None], Trial] = {}
    choices = CHOICES if isinstance(pipe.model.head, CategoricalHead) else (SamplingOptions(),)
    for kind in kinds(choices):
        fitting = None
        for trial in lengthened(pipe, latency, *kind):
            if trial.seconds > seconds:
                break
            fitting = trial
        if fitting is not None:
            found.setdefault((pipe.schedule(fitting.options), fitting.options.order), fitting)
    if not found:
        least = next(lengthened(pipe, latency, 0.0, False, SamplingOptions())).seconds
        raise ValueError(
            f"no schedule takes {seconds:.3g} s an image; the shortest, a single evaluation, takes {least:.3g} s: "
            f"give more time"
        )
    return list(found.values())


def kinds(choices: Sequence[SamplingOptions]) -> Iterator[tuple[float, bool, SamplingOptions]]:
    """Local evaluations for each full one, whether these come late, and how they choose."""
    yield 0.0, False, SamplingOptions()
    for ratio in RATIOS:
        for late in (False, True)[: 1 + (ratio < 1)]:  # where every group has some, there is no early and late
            yield from ((ratio, late, choice) for choice in choices)


def lengthened(
    pipe: Pipeline, latency: Latency, ratio: float, late: bool, choice: SamplingOptions
) -> Iterator[Trial]:
    """Schedules of one kind from short to long, as long as there are tokens."""
    chain = math.ceil(ratio) or 1
    for full in range(max(1, math.ceil(1 / ratio)) if ratio else 1, pipe.model.num_tokens + 1):
        options = replace(choice, full=full)
        if ratio:
            local = math.floor(ratio * full)
            options = replace(options, local=local, warmup=late * (full - math.ceil(local / chain)), chain=chain)
        try:
            schedule = pipe.schedule(options)
        except ValueError:  # more sub-steps than the rule for counts has tokens for
            return
        yield Trial(options, latency.seconds(schedule))


def tune(
    pipe: Pipeline, trials: Sequence[Trial], labels: Sequence[int] | None, num: int, *, seed: int = 0
) -> list[Trial]:
    """The trials after calibration runs of at most `num` images, the best first.

    All draw a few images; those with the largest errors drop out, and the others draw more. The last `FINALISTS` or
    more draw all of them.
    """
    rounds = sorted({max(1, num >> left) for left in range(ROUNDS)})
    plain = Trial(pipe.options.plain(pipe.model.num_tokens), 0.0)
    plain = plain.drawing(pipe, pipe.trial(num, plain.options, seed=seed, labels=labels)[: rounds[0]])
    going, out, done = [replace(trial, usual=float(plain.choice.mean())) for trial in trials], list[Trial](), 0
    for until in rounds:
        for place in tqdm(range(len(going)), desc=f"{until} of {num} images", unit="schedule"):
            works = pipe.trial(num, going[place].options, seed=seed, labels=labels)[done:until]
            going[place] = going[place].drawing(pipe, works)
        going.sort(key=lambda trial: trial.error)
        kept = len(going) if until == num else max(FINALISTS, len(going) // 2)
        out, going, done = going[kept:] + out, going[:kept], until
    return going + out
