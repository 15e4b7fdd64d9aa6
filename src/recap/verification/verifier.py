"""What holds for every model under grouped decoding, as exact checks that anybody can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw, Known, take
from recap.core.decode import grouped_decode
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise, image_generators
from recap.core.protocols import Selector
from recap.core.schedule import Schedule, from_counts
from recap.core.selection import ConfidenceOrder, InformedOrder
from recap.models.adapter import Adapter, ModelWrapper
from recap.models.registry import adapt
from recap.verification.compare import distance as distance
from recap.verification.compare import doubled
from recap.verification.lengths import Texts

TOLERANCE = 1e-5  # relative to the largest value, in float32


@dataclass(frozen=True, slots=True)
class Check:
    """One check, whether it passed, and how large the error was."""

    name: str
    ok: bool
    error: float
    tolerance: float

    def __str__(self) -> str:
        mark = "ok  " if self.ok else "FAIL"
        return f"{mark}  {self.name:<48} error {self.error:.1e}  tolerance {self.tolerance:.0e}"


class Report(tuple[Check, ...]):
    """The checks that were made, in order; `ok` when all of them passed."""

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self)

    def __str__(self) -> str:
        failed = sum(not check.ok for check in self)
        last = f"{failed} of {len(self)} checks failed" if failed else f"all {len(self)} checks passed"
        return "\n".join([*map(str, self), last])


class PlainModel(ModelWrapper):
    """The same model by its own forward alone: everything recomputed, in raster order, nothing cached."""

    def __init__(self, model: Adapter, labels: Tensor | None) -> None:
        head = model.head
        over_logits = head.over(nn.Identity()) if isinstance(head, CategoricalHead) else None
        super().__init__(model, head=over_logits)
        self.labels = labels

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        return take(self.model.plain(canvas, self.labels), canvas.order[:, wanted])


class Forgetful(ModelWrapper):
    """Local evaluations that hear nothing of what their group has committed: for them nothing has changed."""

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        self.begun = canvas.decoded
        return self.model.full(canvas, cache, wanted)

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        tokens, decoded = canvas.tokens.clone(), canvas.decoded
        canvas.tokens[:, self.begun : decoded] = tokens[:, decoded : decoded + 1]  # masked ones
        canvas.decoded = self.begun
        features = self.model.local(canvas, cache, rows, wanted)
        canvas.tokens.copy_(tokens)
        canvas.decoded = decoded
        return features


class Moment(NamedTuple):
    """A canvas as it was after a sub-step."""

    decoded: int
    tokens: Tensor  # (B, N) or (B, N, C), in arrival order
    order: Tensor  # (B, N)


class Verifier:
    """Checks one model with its selector; batches are small, and all randomness comes from `seed`.

    Models that rank by confidence are checked with the selector that ranks after local evaluations too.
    """

    def __init__(self, model: Adapter, selector: Selector, seed: int = 0, tolerance: float = TOLERANCE) -> None:
        self.model, self.selector, self.seed, self.tolerance = model, selector, seed, tolerance
        self.reranks = isinstance(model.head, CategoricalHead)  # then the order may change between evaluations
        self.selectors = [selector, InformedOrder()] if self.reranks else [selector]
        self.branches = 2 if model.guidable else 1
        self.checks: dict[str, Callable[[], Iterator[float]]] = {
            "full evaluation = plain forward": self.full_is_plain,
            "local with nothing changed = full": self.unchanged,
            "local over all rows = full": self.all_rows,
            "one layer: local = full after commits": self.one_layer,
            "no local steps = plain decoding, draw for draw": self.plain_decoding,
            "batch of 1 = batch of 8, image by image": self.batches,
            "committed tokens never change": self.committed,
            "leftovers are masked again, and drawn once": self.leftovers,
            "known tokens never change": self.known,
            "cache bytes = predicted bytes": self.cache_bytes,
        }
        if self.reranks:
            self.checks["coupled, nothing changed = the very same values"] = self.coupled
        if model.knows_lengths:
            self.checks["texts of unequal length = each alone"] = self.lengths

    def run(self) -> Iterator[Check]:
        """Make one check after another."""
        for name, check in self.checks.items():
            with torch.inference_mode():
                errors = [error if error == error else float("inf") for error in check()]  # NaN is a failure
            worst = max(errors)
            yield Check(name, worst <= self.tolerance, worst, self.tolerance)

    def full_is_plain(self) -> Iterator[float]:
        for decoded in (0, self.size // 3, self.size - 1):
            canvas, _ = self.scene(decoded)
            features = self.model.full(canvas, None, slice(0, self.size))
            plain = take(self.model.plain(canvas, self.labels(2)), canvas.order)
            yield distance(self.model.prediction(features), plain)
        for ours, own in self.model.head_pairs(features[:, :5], self.noise(range(len(features)), offset=3000)):
            yield distance(ours, own)

    def unchanged(self) -> Iterator[float]:
        for context in (0, self.size // 3):
            canvas, cache = self.scene(context)
            full = self.model.full(canvas, cache, slice(0, self.size))
            for last in (self.size, self.size // 2):  # twice, as after a full evaluation and a local one
                self.rerank(canvas, last)
            rows = slice(context, context + self.size // 4)
            expected = full[:, rows] if canvas.cache_rows is None else take(full, canvas.cache_rows[:, rows])
            yield distance(self.model.local(canvas, cache, rows, rows), expected)

    def all_rows(self) -> Iterator[float]:
        model = self.model.replace(refresh_prefix=True)
        everything = slice(0, self.size)
        canvas, cache = self.scene(self.size // 3)
        model.full(canvas, cache, everything)
        self.rerank(canvas, self.size)
        self.commit(canvas, self.size // 4)
        yield distance(model.local(canvas, cache, everything, everything), self.fresh(model, canvas, everything))

    def one_layer(self) -> Iterator[float]:
        model = self.model.single_layer()
        for chain in (1, 3):
            canvas, cache = self.scene(self.size // 3, model)
            start, part = canvas.decoded, self.size // 8
            model.full(canvas, cache, slice(0, self.size))
            self.rerank(canvas, self.size)
            rows = slice(start, start + (chain + 1) * part)
            for _ in range(chain):
                self.commit(canvas, part)
                self.rerank(canvas, rows.stop)
                wanted = slice(canvas.decoded, canvas.decoded + part)
                yield distance(model.local(canvas, cache, rows, wanted), self.fresh(model, canvas, wanted))

    def plain_decoding(self) -> Iterator[float]:
        schedule, plain = self.schedule(full=4), PlainModel(self.model, self.labels(2))

        def sampled() -> Iterator[Tensor]:
            return (self.sample(model, schedule, [0, 1]) for model in (self.model, plain))

        try:
            with doubled(self.model.module):  # the first step of a diffusion multiplies rounding by thousands
                yield distance(*sampled())
        except RuntimeError:  # a layer that knows one precision alone, as quantized ones may
            yield distance(*sampled())
        if self.reranks:
            short = self.schedule(full=2)
            yield distance(
                *(self.sample(self.model, short, [0, 1], by) for by in (InformedOrder(), ConfidenceOrder()))
            )

    def batches(self) -> Iterator[float]:
        # every image alone under the model's own selector; one image shows what ranking anew adds
        long = self.schedule(full=2, local=4, chain=3), range(8)
        short = self.schedule(full=2, local=2, target=1.25), (7,)
        for selector, (schedule, alone) in zip(self.selectors, (long, short), strict=False):
            together = self.sample(self.model, schedule, range(8), selector)
            for image in alone:
                yield distance(self.sample(self.model, schedule, [image], selector), together[image : image + 1])

    def committed(self) -> Iterator[float]:
        for run in self.runs:
            for before, after in pairwise(run):
                n = before.decoded
                same = [torch.equal(after.tokens[:, :n], before.tokens[:, :n])]
                same.append(torch.equal(after.order[:, :n], before.order[:, :n]))
                yield float(not all(same))

    def leftovers(self) -> Iterator[float]:
        blank = self.scene(0)[0].tokens
        for run in self.runs:
            for moment in run:
                n = moment.decoded
                masked = torch.equal(moment.tokens[:, n:], blank[:, n:])
                everywhere = moment.order.sort(dim=1).values == torch.arange(self.size, device=self.model.device)
                yield float(not (masked and everywhere.all()))
            yield float(run[-1].decoded != self.size)

    def coupled(self) -> Iterator[float]:
        drawn = self.sample(self.model, self.schedule(full=1), [0, 1])  # all that the first full evaluation says
        schedule = self.schedule(full=2, local=4, chain=2, target=1.25, coupled=True)
        steps = self.steps(Forgetful(self.model), schedule, [0, 1], selector=InformedOrder())
        *_, canvas = islice(steps, len(schedule.groups[0].steps))
        yield distance(torch.where(canvas.masked, drawn, canvas.raster()), drawn)

    @cached_property
    def runs(self) -> list[list[Moment]]:
        """What runs with target sets of more rows than a group commits looked like after every sub-step."""
        return [
            [
                Moment(canvas.decoded, canvas.tokens.clone(), canvas.order.clone())
                for canvas in self.steps(self.model, schedule, [0, 1], selector=selector)
            ]
            for chain in (1, 3)
            for schedule in [self.schedule(full=2, local=2 * chain, chain=chain, target=1.25)]
            for selector in self.selectors
        ]

    def known(self) -> Iterator[float]:
        for count in (1, self.size // 2):
            schedule = self.schedule(full=2, local=2, tokens=self.size - count)
            order = self.noise(offset=2000).permutation(self.size)
            tokens, masked = self.scene(self.size)[0].raster(), order >= count
            *_, canvas = self.steps(self.model, schedule, [0, 1], Known(tokens, masked))
            yield float((canvas.raster()[~masked] != tokens[~masked]).any() or canvas.masked.any())

    def lengths(self) -> Iterator[float]:
        selector = InformedOrder()  # an order that is known before depends on the length
        for prompted in (True, False):  # the plain forward has to pass over the same rows
            texts = Texts(self.model, self.noise, self.seed, prompted)
            yield from texts.full()
            yield from texts.local()
            for schedule in (self.schedule(2, 4, texts.written, chain=2), self.schedule(4, tokens=texts.written)):
                yield from texts.runs(schedule, selector)

    def cache_bytes(self) -> Iterator[float]:
        for chain in (1, 3):
            schedule = self.schedule(full=2, local=2 * chain, chain=chain)
            canvas, _ = self.scene(0)
            predicted = self.model.cache_layout(schedule).nbytes(2, self.branches, self.model.dtype)
            yield float(abs(self.model.new_cache(canvas, schedule).nbytes - predicted))

    @property
    def size(self) -> int:
        return self.model.num_tokens

    def labels(self, batch: int, first: int = 0) -> Tensor | None:
        if not self.model.classes:
            return None
        return (torch.arange(first, first + batch, device=self.model.device) * 7 + 1) % self.model.classes

    def noise(self, images: Sequence[int] = (0, 1), offset: int = 0) -> Noise:
        return Noise(image_generators(self.seed + offset, images), self.model.device)

    def scene(self, decoded: int, model: Adapter | None = None) -> tuple[Canvas, ContextCache]:
        """Two images with `decoded` random tokens at random places, and an empty cache for `model`."""
        canvas = self.model.start(self.labels(2), self.noise().permutation(self.size), self.branches)
        self.commit(canvas, decoded)
        canvas.known = decoded // 2  # of which a branch may know nothing
        layout = (model or self.model).cache_layout()
        return canvas, ContextCache(layout, 2 * self.branches, self.model.device, self.model.dtype)

    def commit(self, canvas: Canvas, tokens: int) -> None:
        noise = self.noise(offset=1 + canvas.decoded)
        if self.reranks:
            assert isinstance(self.model.head, CategoricalHead)
            ids = (noise.uniform(tokens) * self.model.config.codes).long()
            canvas.commit(Draw(self.model.head.named(ids)))
        else:
            canvas.commit(Draw(noise.normal(tokens, canvas.tokens.shape[2])))

    def rerank(self, canvas: Canvas, last: int) -> None:
        """Other masked rows first, of those before row `last`."""
        if self.reranks:
            canvas.promote(self.noise(offset=1000).permutation(last - canvas.decoded))

    def fresh(self, model: Adapter, canvas: Canvas, wanted: slice) -> Tensor:
        moved, canvas.cache_rows = canvas.cache_rows, None
        exact = model.full(canvas, None, wanted)
        canvas.cache_rows = moved
        return exact

    def schedule(self, full: int, local: int = 0, tokens: int | None = None, **options: Any) -> Schedule:
        """Even counts, so that every path is busy; few diffusion steps, since their number changes no check."""
        steps, tokens = full + local, tokens or self.size
        sizes = [tokens * (s + 1) // steps - tokens * s // steps for s in range(steps)]
        draws = {"choice_temperature": 2.0, "guidance": 1.5 if self.branches == 2 else 1.0, "head_steps": (5, 4)}
        return from_counts(tokens, sizes, full=full, local=local, warmup=0, **draws | options)

    def steps(
        self,
        model: Adapter,
        schedule: Schedule,
        images: Sequence[int],
        known: Known | None = None,
        selector: Selector | None = None,
    ) -> Iterator[Canvas]:
        labels = self.labels(len(images), images[0])
        return grouped_decode(model, labels, schedule, selector or self.selector, self.noise(images), known)

    def sample(
        self, model: Adapter, schedule: Schedule, images: Sequence[int], selector: Selector | None = None
    ) -> Tensor:
        *_, canvas = self.steps(model, schedule, images, selector=selector)
        return canvas.raster()


def verify(
    model: Adapter | nn.Module, selector: Selector | None = None, *, seed: int = 0, tolerance: float = TOLERANCE
) -> Report:
    """Check a model, ours or anybody's, exactly: `verify(model).ok` is the acceptance test.

    A model is an adapter or what `recap.wrap` takes; the selector is its own unless another is given. One that knows
    several lengths is checked at a short one.
    """
    adapter = adapt(model).short()
    return Report(Verifier(adapter, selector or adapter.selector(), seed, tolerance).run())
