"""How good are texts, and how near is reuse to plain decoding: what needs nobody else's network.

Texts are rows of tokens: ids or words, and a string is split at white space. Entropy and the share of different
n-grams depend on how long a text is: compare texts of one length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from recap.core.canvas import Known
from recap.core.decode import grouped_decode
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise, image_generators
from recap.core.protocols import Selector
from recap.core.schedule import Schedule
from recap.evaluation.error import ErrorLog, LocalError
from recap.models.adapter import Adapter

Text = str | Tensor | Sequence[Hashable]


class Estimate(NamedTuple):
    """A mean over texts and its standard error, which is NaN for a single one."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        return cls(fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan)

    def __str__(self) -> str:
        if not self.error > 0:  # nor is NaN
            return f"{self.mean:.4g} ± {self.error:.2g}"
        digits = max(0, 1 - math.floor(math.log10(self.error)))  # two of the error
        return f"{self.mean:.{digits}f} ± {self.error:.{digits}f}"


def unigram_entropy(texts: Sequence[Text]) -> Estimate:
    """- sum of s log s over the shares s of the different tokens of a text, in nats; the mean over texts."""
    found = []
    for shares in (Counter(grams) for grams in ngrams(texts, 1)):
        total = shares.total()
        found.append(math.fsum(-n / total * math.log(n / total) for n in shares.values()))
    return Estimate.of(found)


def distinct_ngrams(texts: Sequence[Text], n: int) -> Estimate:
    """Different runs of n tokens in a text, over all such runs in it; the mean over texts."""
    if n < 1:
        raise ValueError(f"n is {n}; n-grams have at least one token")
    return Estimate.of([len(set(grams)) / len(grams) for grams in ngrams(texts, n)])


def ngrams(texts: Sequence[Text], n: int) -> list[list[tuple[Hashable, ...]]]:
    """The runs of n tokens in each text."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError(f"texts are {texts!r:.40}; give a list of texts, at least one")
    found = []
    for number, text in enumerate(texts):
        words = text.split() if isinstance(text, str) else text.tolist() if isinstance(text, Tensor) else list(text)
        if len(words) < n:
            raise ValueError(f"text {number} has {len(words)} tokens, but {n} make one {n}-gram; leave it out")
        found.append(list(zip(*(words[at:] for at in range(n)), strict=False)))
    return found


@dataclass(frozen=True, slots=True)
class LikelihoodBound:
    """What a masked model needs for a text at most: nats per token with a standard error over windows, bits per byte.

    The error counts draws and windows as independent; that shares are spread evenly makes the true one smaller.
    """

    nats: Estimate
    windows: int
    tokens: int  # of a window
    draws: int
    bits_per_byte: Estimate | None


@torch.inference_mode()
def likelihood_bound(
    model: Adapter,
    ids: Tensor,
    *,
    generator: Generator,
    windows: int | None = None,
    draws: int = 8,
    batch: int = 8,
    size: int | None = None,
) -> LikelihoodBound:
    """The bound of LLaDA and MDLM on the log-likelihood of a text `ids` (L) that the model has not learnt.

    Windows of as many tokens as the model has (`model.at(256)` has others) are cut out of it: `windows` of them,
    evenly spread, or all that fit. Of each, k tokens are masked, `draws` times, and the cross-entropy at these is
    weighted by N / k; what is never drawn, such as the mask, is left out as in sampling. Numbers k from 1 to N are
    equally probable, spread evenly over the draws of a window and over windows. The whole text has `size` bytes.
    """
    head, tokens = model.head, model.num_tokens
    if not isinstance(head, CategoricalHead) or head.vocab_ids is not None or model.classes:
        raise ValueError(f"{type(model).__name__} does not draw ids of a whole vocabulary; give a language model")
    mask_id, whole = model.config.mask_id, len(ids) // tokens
    number = whole if windows is None else min(windows, whole)
    if number < 1 or draws < 1 or batch < 1:
        raise ValueError(
            f"{len(ids)} tokens make {whole} windows of {tokens}; with windows={windows}, draws={draws} and "
            f"batch={batch} there is nothing to measure, each must be at least 1"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= model.config.codes or bool((ids == mask_id).any()):
        raise ValueError(
            f"ids are {int(ids.min())} to {int(ids.max())}; a text has ids below {model.config.codes} and no mask, "
            f"which is {mask_id}. Is the tokenizer the model's own?"
        )
    text = ids[: whole * tokens].long().view(whole, tokens)[torch.arange(number) * whole // number]  # (W, N)
    strata = torch.stack([torch.randperm(number, generator=generator) + draw * number for draw in range(draws)], 1)
    jitter = torch.rand(number, draws, generator=generator, dtype=torch.float64)
    counts = ((strata + jitter) / (number * draws) * tokens).long().clamp(max=tokens - 1) + 1  # (W, draws)
    nats = torch.empty(number * draws, dtype=torch.float64)
    order = torch.arange(tokens, device=model.device)
    for first in range(0, len(nats), batch):
        at = torch.arange(first, min(first + batch, len(nats)))
        some, masks = text[at // draws], counts.flatten()[at, None]  # (B, N), (B, 1)
        masked = torch.rand(some.shape, generator=generator).argsort(1).argsort(1) < masks
        canvas = model.start(None, order.repeat(len(at), 1), 1)
        canvas.tokens[:] = some.masked_fill(masked, mask_id).to(model.device)
        shares = head.log_shares(model.plain(canvas, None)[masked.to(model.device)].float())  # (all masked, V)
        lost = torch.zeros(some.shape, dtype=torch.float64)
        lost[masked] = F.nll_loss(shares, some[masked].to(model.device), reduction="none").double().cpu()
        nats[at] = lost.sum(1) / masks[:, 0]
    found = Estimate.of(nats.view(number, draws).mean(1).tolist())
    scale = None if size is None else len(ids) / size / math.log(2)
    bits = None if scale is None else Estimate(found.mean * scale, found.error * scale)
    return LikelihoodBound(found, number, tokens, draws, bits)


@dataclass(frozen=True, slots=True)
class TokenAgreement:
    """How near a schedule is to another one on the same random numbers."""

    equal: Estimate  # share of the tokens that were drawn and are the same, over texts
    divergence: float | None  # KL(full || local), mean over the tokens of local evaluations; None without any
    steps: list[LocalError]


def token_agreement(
    model: Adapter,
    schedule: Schedule,
    other: Schedule | None = None,
    *,
    number: int = 8,
    seed: int = 0,
    batch: int = 1,
    known: Known | None = None,
    labels: Tensor | None = None,
    selector: Selector | None = None,
) -> TokenAgreement:
    """Draw `number` texts by a schedule and by another one, its own without reuse by default, and compare them.

    Every local evaluation of the first is held against a full one of the same canvas on the side. `known` and
    `labels` have a row for each text. Randomness belongs to the seed and the number of a text under both schedules.
    """
    if number < 1 or batch < 1:
        raise ValueError(f"number is {number} and batch {batch}; compare at least one text at a time")
    rows = {"labels": labels, "known": None if known is None else known.masked}
    if wrong := [name for name, given in rows.items() if given is not None and len(given) != number]:
        raise ValueError(f"{wrong[0]} has other than {number} rows, the number of texts; give one for each")
    schedule = schedule.knowing(0 if known is None else known.count)
    log, equal = ErrorLog(model, schedule), list[float]()
    for first in range(0, number, batch):
        some = slice(first, min(first + batch, number))
        start = None if known is None else Known(known.tokens[some], known.masked[some])
        ends = []
        for drawn, how in ((log, schedule), (model, schedule.plain() if other is None else other)):
            noise = Noise(image_generators(seed, range(some.start, some.stop)), model.device)
            lengths = None if labels is None else labels[some]
            run = grouped_decode(drawn, lengths, how, selector or model.selector(), noise, start)
            for step, canvas in enumerate(run, start=1):
                log.step(range(some.start, some.stop) if drawn is log else (), step, canvas)
            ends.append(canvas.raster())
        same = (ends[0] == ends[1]).double()
        drawn_here = torch.ones_like(same) if start is None else start.masked.to(same.device).double()
        equal += ((same * drawn_here).sum(1) / drawn_here.sum(1)).tolist()
    steps = log.rows(schedule)
    weight = sum(row.tokens for row in steps)
    mean = sum(row.mean * row.tokens for row in steps) / weight if steps else None
    return TokenAgreement(Estimate.of(equal), mean, steps)
