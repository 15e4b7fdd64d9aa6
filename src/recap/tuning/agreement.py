"""What a schedule loses: every sub-step of its own images held against the model's exact prediction.

A masked model means its tokens one by one, each drawn from a full evaluation that sees all before it. A sub-step that
commits n tokens departs from that in two ways: they do not know of each other, and a local evaluation reads features
that are old. What both lose together is log q - log p of what was committed, which the chain rule spreads over its
tokens in random order:

    sum over k = 0 .. n - 1 of KL(q || p(. | canvas, k of the tokens)) at one of the others,

where q is the distribution that the sub-step drew from, and p a full evaluation. Its terms grow with k almost on a
line, so one full evaluation in the middle gives the sum: the mean over the second half of the tokens, given the
first, times n. Variance is low: divergences of whole distributions take the place of log-probabilities of the values
that happened to be drawn; k is in the middle rather than drawn (with a drawn one, 24 images had deviations 1.3 to 1.8
times as large); and images, noise by position and orders are the same for every schedule.

Choosing is no error of distributions, and yet it decides: of many draws the surest are kept, which acts like a lower
temperature, and a local evaluation that keeps whatever it draws at rows that were chosen before is as warm as it is.
So it has a figure of its own, by how much what is committed is more probable than draws are on average:

    sum of log q(x) + H(q),

which is nothing on average where nothing is chosen. How it compares with plain decoding's matters at one temperature.

For heads without probabilities (MAR) a surrogate takes the place of the divergence: the squared error of features
over their variance among rows. It has the same form, but no unit, and what the head makes of an error is not in it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw, take
from recap.core.heads import CategoricalHead, guided
from recap.core.noise import Noise, Purpose
from recap.core.steps import Step
from recap.models.adapter import Adapter, ModelWrapper
from recap.pipelines.base import ModelPipeline as Pipeline
from recap.runs.draw import begin
from recap.runs.works import Work


class WatchedModel(ModelWrapper):
    """A model that keeps what its latest evaluation said, and can be asked what it would say of other canvases."""

    def __init__(self, model: Adapter) -> None:
        super().__init__(model)
        self.labels: Tensor | None = None
        self.positions, self.features = (torch.empty(0),) * 2

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        self.labels = labels
        return self.model.start(labels, order, branches)

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        return self._kept(canvas, wanted, self.model.full(canvas, cache, wanted))

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        return self._kept(canvas, wanted, self.model.local(canvas, cache, rows, wanted))

    def _kept(self, canvas: Canvas, wanted: slice, features: Tensor) -> Tensor:
        self.positions, self.features = canvas.order[:, wanted].clone(), features.clone()  # engines use memory again
        return features

    def used(self, canvas: Canvas, rows: slice) -> Tensor:
        """The features from which `rows` that were just committed have been drawn."""
        same = self.positions.unsqueeze(1) == canvas.order[:, rows].unsqueeze(2)  # (B, n, C)
        return take(self.features, same.byte().argmax(dim=2))

    def exact(self, canvas: Canvas, rows: slice, lot: Tensor, shown: int) -> Tensor:
        """A full evaluation that knows what came before `rows`, and the first `shown` of these in the order `lot`.

        Of the others, in that order.
        """
        index = torch.arange(canvas.size, device=lot.device).repeat(canvas.batch, 1)
        index[:, rows] = lot + rows.start
        decoded = rows.start + shown
        probe = self.model.start(self.labels, canvas.order.gather(1, index), canvas.branches)
        probe.commit(Draw(take(canvas.tokens, index[:, :decoded])))
        probe.known = canvas.known
        probe.begin_group(canvas.branches)
        return self.model.full(probe, None, slice(decoded, rows.stop))


class Agreement(NamedTuple):
    """Of every image and sub-step (W, S), in nats, or for MAR in the units of the surrogate."""

    loss: Tensor  # by drawing together and from old features
    choice: Tensor  # by how much what is committed is more probable than draws are; 0 for MAR


@torch.inference_mode()
def agreement(pipe: Pipeline, works: Sequence[Work], batch: int = 8) -> Agreement:
    """Draw images of one schedule, `batch` at a time, and hold every sub-step against the exact model."""
    schedule = works[0].schedule
    if isinstance(pipe.model.head, CategoricalHead) and not all(step.temperature for step in schedule.steps):
        raise ValueError(
            f"schedule {schedule} has a temperature of 0, where there is nothing to compare; use 0.1 or more"
        )
    parts = [_agreement(pipe, works[at : at + batch]) for at in range(0, len(works), batch)]
    return Agreement(*(torch.cat(part).cpu() for part in zip(*parts, strict=True)))


def _agreement(pipe: Pipeline, works: Sequence[Work]) -> Agreement:
    """That of images that are drawn together."""
    pipe = copy.copy(pipe)
    pipe.model = model = WatchedModel(pipe.model)
    lots = Noise([work.key ^ 1 for work in works], pipe.device)  # numbers that the run has no use for
    schedule = works[0].schedule
    done, turn = schedule.known, works[0].index // len(works)
    loss, choice = torch.zeros(2, len(works), len(schedule.steps), dtype=torch.float64, device=pipe.device)
    for index, canvas in enumerate(begin(pipe, works, len(works))):
        rows, done = slice(done, canvas.decoded), canvas.decoded
        count = rows.stop - rows.start
        if not count:  # a threshold let its tokens pass before
            continue
        shown = (count - 1 + (turn + index) % 2) // 2  # the middle of an even number lies between two
        lot = lots.at(index, Purpose.RANKS, canvas.order[:, rows]).uniform().argsort(dim=1)  # (B, n)
        used, exact = take(model.used(canvas, rows), lot), model.exact(canvas, rows, lot, shown)
        head, step = model.head, schedule.steps[index]
        if isinstance(head, CategoricalHead):
            q, p = (log_probabilities(head, features, step, canvas.branches) for features in (used, exact))
            values = places(head, take(canvas.tokens[:, rows], lot)).unsqueeze(-1)
            choice[:, index] = (q.gather(-1, values) - (q.exp() * q).sum(-1, keepdim=True)).sum(dim=(1, 2))
            q = q[:, shown:]
            apart = (q.exp() * (q - p)).sum(-1).clamp_min(0.0)  # rounding can push a divergence of 0 below it
        else:  # what guidance makes of features is a matter of the head, which has not drawn yet
            squares = (used[:, shown:] - exact).double().square().sum(-1)
            apart = squares.view(canvas.branches, *lot[:, shown:].shape).mean(0)
        loss[:, index] = count * apart.mean(dim=1)
    if not isinstance(model.head, CategoricalHead):
        loss /= variance(model, canvas, lots)
    return Agreement(loss, choice)


def log_probabilities(head: CategoricalHead, features: Tensor, step: Step, branches: int) -> Tensor:
    """Of the distributions that a sub-step draws from (B, n, V)."""
    return head.log_shares(guided(head.logits(features).double(), branches, step.guidance) / step.temperature)


def places(head: CategoricalHead, ids: Tensor) -> Tensor:
    """Where ids stand among the logits."""
    return ids if head.vocab_ids is None else (ids.unsqueeze(-1) == head.vocab_ids.to(ids.device)).byte().argmax(-1)


def variance(model: WatchedModel, canvas: Canvas, lots: Noise) -> Tensor:
    """Of exact features among masked rows of finished images, when a random half of each is masked."""
    lot = lots.permutation(canvas.size)
    features = model.exact(canvas, slice(0, canvas.size), lot, canvas.size // 2)
    return features.double().flatten(0, 1).var(dim=0).sum()
