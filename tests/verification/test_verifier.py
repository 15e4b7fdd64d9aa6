from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, PositionNoise, Purpose
from recap.core.selection import InformedOrder
from recap.core.steps import Step
from recap.models.adapter import Adapter
from recap.models.mage import MAGEAdapter
from recap.models.mar import MARAdapter
from recap.models.maskgit import MaskGITAdapter
from recap.verification.verifier import distance, verify
from tests import tiny

ALL = slice(0, 16)


def new_cache(adapter: Adapter, canvas: Canvas) -> ContextCache:
    return ContextCache(adapter.cache_layout(), canvas.batch * canvas.branches, "cpu")


def exact(adapter: Adapter, canvas: Canvas, wanted: slice) -> Tensor:
    moved, canvas.cache_rows = canvas.cache_rows, None
    features = adapter.full(canvas, None, wanted)
    canvas.cache_rows = moved
    return features


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_all_checks_pass(family: str, seed: int) -> None:
    report = verify(tiny.model(family, seed), seed=seed)
    assert report.ok, report


class StalePositions(MARAdapter):
    """Local evaluations that take their positions from the wrong place."""

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        return super().local(canvas, cache, rows, wanted).roll(1, dims=1)


class ForgetsPad(MAGEAdapter):
    """Local evaluations that do not remember the pad vector."""

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        cache.pad.zero_()
        return super().local(canvas, cache, rows, wanted)


class WritesBeside(MaskGITAdapter):
    """Local evaluations that renew the neighbours of their rows."""

    def target(self, canvas: Canvas, rows: slice, prefix: int, length: int) -> Rows:
        aimed = super().target(canvas, rows, prefix, length)
        assert aimed.cache_rows is not None
        return replace(aimed, cache_rows=aimed.cache_rows % (length - 1) + 1)


class KeepsOldTokens(MaskGITAdapter):
    """Local evaluations that do not see what their group has decoded."""

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        old = canvas.tokens.clone()
        canvas.tokens[:, rows] = self.config.mask_id
        features = super().local(canvas, cache, rows, wanted)
        canvas.tokens.copy_(old)
        return features


class SeesNeighbours(MaskGITAdapter):
    """An image that depends on its batch."""

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        features = super().full(canvas, cache, wanted)
        return features + features.mean(dim=0, keepdim=True)


class RewritesTokens(MARAdapter):
    """A model that changes what was committed."""

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        canvas.tokens.mul_(1.01)
        return super().full(canvas, cache, wanted)


class DrawsAgain(MAGEAdapter):
    """Local evaluations that draw what their group has committed once more."""

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        features = super().local(canvas, cache, rows, rows)
        again = self.prediction(features[:, : canvas.decoded - rows.start]).argmax(-1)
        canvas.tokens[:, rows.start : canvas.decoded] = again
        return features[:, wanted.start - rows.start : wanted.stop - rows.start]


@pytest.mark.parametrize(
    ("broken", "checks"),
    [
        (StalePositions, {"local with nothing changed = full", "one layer: local = full after commits"}),
        (ForgetsPad, {"local with nothing changed = full"}),
        (WritesBeside, {"one layer: local = full after commits"}),
        (KeepsOldTokens, {"one layer: local = full after commits", "local over all rows = full"}),
        (SeesNeighbours, {"full evaluation = plain forward", "batch of 1 = batch of 8, image by image"}),
        (RewritesTokens, {"committed tokens never change", "known tokens never change"}),
        (DrawsAgain, {"committed tokens never change"}),
    ],
)
def test_broken_models_fail_the_checks(broken: type[Any], checks: set[str]) -> None:
    family = broken.__mro__[1].__name__.removesuffix("Adapter").lower()
    model = broken(tiny.model(family).module)
    failed = {check.name for check in verify(model) if not check.ok}
    assert checks <= failed


at, commit, promote, rank = Noise.at, Canvas.commit, Canvas.promote, InformedOrder.rank


def by_row(noise: Noise, draw: int, purpose: Purpose, positions: Tensor) -> PositionNoise:
    """Numbers that belong to the rows of a draw."""
    return at(noise, draw, purpose, torch.arange(positions.shape[1]).expand_as(positions))


def by_batch(noise: Noise, draw: int, purpose: Purpose, positions: Tensor) -> PositionNoise:
    """Numbers that depend on how many images are drawn together."""
    return at(noise, draw + 100 * len(noise), purpose, positions)


def fresh(noise: Noise, draw: int, purpose: Purpose, positions: Tensor) -> PositionNoise:
    """Numbers that are new whenever any are asked for."""
    noise.uniform(1)
    return at(noise, draw + 100 * noise._drawn, purpose, positions)


def promote_once(canvas: Canvas, ranking: Tensor) -> None:
    """Forgets what an earlier ranking of the group has moved."""
    canvas.cache_rows = None
    promote(canvas, ranking)


def promote_all(canvas: Canvas, ranking: Tensor) -> None:
    """Moves committed rows with those that are ranked."""
    decoded, canvas.decoded = canvas.decoded, 0
    promote(canvas, ranking)
    canvas.decoded = decoded


def commit_more(canvas: Canvas, draw: Draw) -> None:
    """Leaves a value at a row that is not committed."""
    commit(canvas, draw)
    if draw.values.numel():
        canvas.tokens[:, canvas.decoded : canvas.decoded + 1] = draw.values[:, :1]


def rank_backwards(order: InformedOrder, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
    """The least sure ones first."""
    return rank(order, draw, step, noise).flip(1)


def rank_twice(order: InformedOrder, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
    """The surest one once more in the place of the least sure, which is lost."""
    ranking = rank(order, draw, step, noise)
    return torch.cat([ranking[:, :-1], ranking[:, :1]], dim=1)


COUPLED = "coupled, nothing changed = the very same values"


@pytest.mark.parametrize(
    ("owner", "method", "broken", "checks"),
    [
        (Noise, "at", by_row, {COUPLED}),
        (Noise, "at", fresh, {COUPLED}),
        (Noise, "at", by_batch, {"batch of 1 = batch of 8, image by image"}),
        (
            Canvas,
            "promote",
            promote_once,
            {"local with nothing changed = full", "one layer: local = full after commits"},
        ),
        (Canvas, "promote", promote_all, {"committed tokens never change"}),
        (Canvas, "commit", commit_more, {"leftovers are masked again, and drawn once"}),
        (InformedOrder, "rank", rank_backwards, {"no local steps = plain decoding, draw for draw"}),
        (InformedOrder, "rank", rank_twice, {"leftovers are masked again, and drawn once"}),
    ],
)
@pytest.mark.parametrize("family", ["mage", "maskgit"])
def test_broken_loops_fail_the_checks(
    family: str, owner: Any, method: str, broken: Any, checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.model(family)
    monkeypatch.setattr(owner, method, broken)
    assert checks <= {check.name for check in verify(model) if not check.ok}


def test_nan_is_a_failure_and_not_a_pass() -> None:
    model = tiny.model("maskgit")
    with torch.no_grad():
        model.module.get_parameter("norm.weight")[0] = torch.nan
    assert not verify(model).ok


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_rows_that_are_not_renewed_bring_no_news(family: str) -> None:
    """Check (iii): with the decoded rows of the group left stale, a local evaluation is the old full one."""
    adapter = tiny.model(family)
    canvas = tiny.canvas(adapter)
    canvas.commit(tiny.values(adapter, 2, 5))
    cache = new_cache(adapter, canvas)
    before = adapter.full(canvas, cache, ALL)
    canvas.commit(tiny.values(adapter, 2, 3, seed=2))
    stale = slice(8, 12)
    if family == "mar":  # the encoder must not hear of the new tokens either
        canvas.decoded = 5
    features = adapter.local(canvas, cache, stale, stale)
    assert distance(features, before[:, stale]) < 1e-6
    canvas.decoded = 8
    told = adapter.local(canvas, cache, slice(5, 12), stale)
    assert distance(told, before[:, stale]) > 1e-3


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_renewing_helps_and_refreshing_the_prefix_helps_no_less(family: str) -> None:
    """A local evaluation is nearer to the exact one than the stale features it replaces."""
    adapter = tiny.model(family)
    canvas = tiny.canvas(adapter, batch=4)
    canvas.commit(tiny.values(adapter, 4, 6))
    cache = new_cache(adapter, canvas)
    stale = adapter.full(canvas, cache, ALL)
    canvas.commit(tiny.values(adapter, 4, 3, seed=2))
    rows, wanted = slice(6, 13), slice(9, 13)
    local = adapter.local(canvas, cache, rows, wanted)
    authors = adapter.replace(refresh_prefix=True).local(canvas, cache, rows, wanted)
    truth = exact(adapter, canvas, wanted)
    assert (local - truth).norm() < (stale[:, wanted] - truth).norm()
    assert (authors - truth).norm() < (stale[:, wanted] - truth).norm()
    assert not torch.equal(local, authors)


@torch.inference_mode()
def test_append_order_does_not_matter_in_the_encoder() -> None:
    adapter = tiny.model("mar")
    order = tiny.noise(1).permutation(16)
    swapped = order.clone()
    swapped[:, [4, 5, 6]] = order[:, [6, 4, 5]]
    draw = tiny.values(adapter, 1, 7)
    features = []
    for positions, index in ((order, [4, 5, 6]), (swapped, [6, 4, 5])):
        canvas = adapter.start(torch.tensor([1]), positions, 2)
        canvas.commit(type(draw)(draw.values[:, :4]))
        cache = new_cache(adapter, canvas)
        adapter.full(canvas, cache, ALL)
        canvas.commit(type(draw)(draw.values[:, index]))
        features.append(adapter.local(canvas, cache, slice(4, 10), slice(7, 10)))
    assert distance(*features) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_half_precision_stays_close(family: str, dtype: torch.dtype) -> None:
    reference, half = tiny.model(family), tiny.model(family)
    half.module.to(dtype)
    predictions = []
    for adapter in (reference, half):
        canvas = tiny.canvas(adapter)
        canvas.commit(tiny.values(adapter, 2, 5))
        cache = ContextCache(adapter.cache_layout(), 2 * canvas.branches, "cpu", adapter.dtype)
        adapter.full(canvas, cache, ALL)
        canvas.commit(tiny.values(adapter, 2, 3, seed=2))
        predictions.append(adapter.prediction(adapter.local(canvas, cache, slice(5, 12), slice(8, 12))).float())
    assert distance(predictions[1], predictions[0]) < 0.05
