"""Runs of the one loop: any schedule, any share of known tokens, every family."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Known, take
from recap.core.costs import run_cost
from recap.core.decode import grouped_decode
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise
from recap.core.protocols import Selector
from recap.core.schedule import Ramp, Schedule, cosine, from_counts, power
from recap.core.selection import ConfidenceOrder, InformedOrder, RandomOrder, ShuffledOrder
from recap.core.start import check_fit
from recap.core.steps import Group
from recap.models.adapter import Adapter, ModelWrapper
from recap.verification.verifier import distance
from tests import tiny
from tests.models import plain

N, SEED = 16, 5
families = pytest.mark.parametrize("family", tiny.FAMILIES)


@st.composite
def schedules(draw: Any, tokens: int, guided: bool, local: bool = True, ended: bool = True) -> Schedule:
    """Any split of the tokens into sub-steps, and of these into groups."""
    cuts = sorted(draw(st.sets(st.integers(1, tokens - 1)))) if tokens > 1 else []
    counts = [b - a for a, b in zip([0, *cuts], [*cuts, tokens], strict=True)]
    steps, chain = len(counts), draw(st.integers(1, 4))
    full = draw(st.integers(-(-steps // (1 + chain)), steps)) if local else steps
    made = from_counts(
        tokens,
        counts,
        full=full,
        local=steps - full,
        warmup=draw(st.integers(0, full)),
        chain=chain,
        temperature=draw(st.sampled_from([0.7, 1.0])),
        rank_temperature=draw(st.sampled_from([None, 1.0])),
        choice_temperature=draw(st.sampled_from([0.0, 3.0])),
        guidance=draw(st.sampled_from([1.0, 1.5, Ramp(1.0, 2.0)])) if guided else 1.0,
        head_steps=(4, 3),
        target=draw(st.sampled_from([1.0, 1.5, 100.0])),
        coupled=draw(st.booleans()),
    )
    more = [draw(st.integers(0, 3)) for _ in range(2)]
    ended = ended and draw(st.booleans())  # whether a step may choose no further than what its group commits
    groups, done = [], 0
    for group in made.groups:
        done += group.tokens
        limited = tuple(replace(step, until=done if ended else 0) for step in group.steps)
        groups.append(replace(group, steps=limited, before=more[0], after=more[1]))
    return replace(made, groups=tuple(groups))


def selectors(adapter: Adapter) -> st.SearchStrategy[Selector]:
    """Every way to choose that a model allows."""
    mine: list[Selector] = [adapter.selector(), RandomOrder()]
    if isinstance(adapter.head, CategoricalHead):
        mine += [InformedOrder(), ShuffledOrder()]
    return st.sampled_from(mine)


def tokens_of(adapter: Adapter, batch: int = 2, seed: int = 9) -> Tensor:
    return tiny.values(adapter, batch, N, seed).values


def masks(batch: int, masked: int, seed: int) -> Tensor:
    """As many masked positions in every image, at places of its own."""
    return tiny.noise(batch, seed).permutation(N) < masked


def run(
    adapter: Adapter,
    schedule: Schedule,
    known: Known | None = None,
    batch: int = 2,
    first: int = 0,
    selector: Selector | None = None,
) -> Canvas:
    return tiny.run(adapter, schedule, batch, seed=SEED, first=first, known=known, selector=selector)


class Overall(ModelWrapper):
    """Keeps the features of all positions, in raster order, of every full evaluation."""

    def __init__(self, model: Adapter) -> None:
        super().__init__(model)
        self.seen: list[Tensor] = []

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        features = self.model.full(canvas, cache, slice(0, N))
        self.seen.append(take(features, canvas.order.argsort(dim=1)))
        return features[:, wanted]


@families
@settings(max_examples=40, deadline=None)
@given(data=st.data(), masked=st.integers(1, N), seed=st.integers(0, 99))
def test_every_masked_token_is_decoded_once_and_no_other_is_touched(
    family: str, data: st.DataObject, masked: int, seed: int
) -> None:
    adapter = tiny.model(family)
    schedule, selector = data.draw(schedules(masked, adapter.guidable)), data.draw(selectors(adapter))
    known = Known(tokens_of(adapter), masks(2, masked, seed))
    kept = ~known.masked
    start = None if masked == N else known
    seen: list[tuple[Tensor, Tensor]] = []
    canvas: Canvas
    for step, canvas in enumerate(
        grouped_decode(adapter, tiny.labels(adapter, 2), schedule, selector, tiny.noise(2, seed), start), 1
    ):
        assert canvas.decoded == N - masked + sum(schedule.sizes[:step])
        assert canvas.masked.sum(dim=1).tolist() == [N - canvas.decoded] * 2
        assert torch.equal(canvas.raster()[kept], known.tokens[kept])
        assert not (canvas.masked & kept).any()
        for tokens, order in seen:
            n = tokens.shape[1]
            assert torch.equal(canvas.tokens[:, :n], tokens)
            assert torch.equal(canvas.order[:, :n], order)
        seen.append((canvas.tokens[:, : canvas.decoded].clone(), canvas.order[:, : canvas.decoded].clone()))
    assert len(seen) == len(schedule.steps)
    assert torch.equal(seen[-1][1].sort(dim=1).values, torch.arange(N).expand(2, -1))
    assert canvas.finite.all()
    if family != "mar":
        assert canvas.raster().max() < adapter.config.codes


@families
@settings(max_examples=25, deadline=None)
@given(data=st.data(), masked=st.integers(1, N))
def test_an_image_is_the_same_in_any_batch(family: str, data: st.DataObject, masked: int) -> None:
    adapter = tiny.model(family)
    schedule, selector = data.draw(schedules(masked, adapter.guidable)), data.draw(selectors(adapter))
    known = Known(tokens_of(adapter, 3), masks(3, masked, 4))
    together = run(adapter, schedule, known, 3, selector=selector).raster()
    for i in range(3):
        alone = Known(known.tokens[i : i + 1], known.masked[i : i + 1])
        assert distance(run(adapter, schedule, alone, 1, i, selector).raster(), together[i : i + 1]) <= 1e-5


@pytest.mark.parametrize("family", ["mage", "maskgit"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_local_steps_is_plain_decoding_of_ids(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(N, adapter.guidable, local=False, ended=False))
    selector = data.draw(st.sampled_from([ConfidenceOrder(), InformedOrder()]))
    ours = run(adapter, schedule, selector=selector).raster()
    with torch.no_grad():
        for image in range(2):
            label = image if adapter.classes else None
            assert ours[image].tolist() == plain.decode_ids(adapter.module, label, schedule, SEED, image)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_local_steps_is_plain_decoding_of_latents(data: st.DataObject) -> None:
    adapter = tiny.model("mar")
    schedule = data.draw(schedules(N, guided=True, local=False))
    ours = run(adapter, schedule).raster()
    with torch.no_grad():
        for image in range(2):
            theirs = plain.decode_latents(adapter.module, image, schedule, SEED, image)
            assert distance(ours[image], theirs) <= 1e-5


class Exact(ModelWrapper):
    """Local evaluations that recompute everything."""

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        moved, canvas.cache_rows = canvas.cache_rows, None
        features = self.model.full(canvas, None, wanted)
        canvas.cache_rows = moved
        return features


@pytest.mark.parametrize("family", ["mage", "maskgit"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_informed_choice_is_plain_decoding_where_nothing_is_stale_and_all_may_be_chosen(
    family: str, data: st.DataObject
) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(N, adapter.guidable))
    groups = (
        Group(tuple(replace(step, choice_temperature=1.5) for step in group.steps), N) for group in schedule.groups
    )
    informed = Schedule(tuple(groups))
    ours = run(Exact(adapter), informed, selector=InformedOrder()).raster()
    assert torch.equal(ours, run(adapter, informed.plain()).raster())


@families
def test_local_steps_change_little_but_something(family: str) -> None:
    """Reuse is an approximation: were grouped and plain runs equal, nothing would have been reused."""
    adapter = tiny.model(family)
    grouped = cosine(N, full=4, local=4, warmup=0, choice_temperature=1.0, head_steps=(5, 5))
    full_only = cosine(N, full=8, choice_temperature=1.0, head_steps=(5, 5))
    assert not torch.equal(run(adapter, grouped).raster(), run(adapter, full_only).raster())


@families
def test_a_run_leaves_the_network_as_it_was(family: str) -> None:
    adapter = tiny.model(family)
    before = {key: value.clone() for key, value in adapter.module.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in adapter.module.named_modules()}
    run(adapter, power(N, full=4, local=2))
    assert all(torch.equal(before[key], value) for key, value in adapter.module.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in adapter.module.named_modules()}


class ShapesOnly(Noise):
    """Noise without values."""

    def uniform(self, *shape: int) -> Tensor:
        return torch.empty((len(self), *shape), device="meta")

    normal = uniform

    def permutation(self, n: int) -> Tensor:
        return torch.empty((len(self), n), dtype=torch.long, device="meta")


@families
def test_no_shape_and_no_branch_depends_on_a_value(family: str) -> None:
    """A whole run on tensors that have no values: whatever asked for one would fail here."""
    adapter = tiny.model(family)
    adapter.module.to("meta")
    labels = tiny.labels(adapter, 2)
    labels = None if labels is None else labels.to("meta")
    guidance = Ramp(1.0, 2.0) if adapter.guidable else 1.0
    schedule = cosine(N, full=3, local=5, chain=3, guidance=guidance, rank_temperature=1.0, head_steps=(4, 3))
    noise = ShapesOnly([torch.Generator(), torch.Generator()], "meta")
    steps = list(grouped_decode(adapter, labels, schedule, adapter.selector(), noise))
    assert len(steps) == 8
    assert steps[-1].raster().shape[:2] == (2, N)


@pytest.mark.parametrize("family", ["mar", "maskgit"])
def test_where_there_is_no_guidance_there_is_no_second_branch(family: str) -> None:
    bound: dict[str, Any] = {"token_bound": 2.0} if family == "mar" else {}
    adapter = tiny.model(family, **bound)
    counts = [2, 3, 3, 4, 2, 2]
    whole = from_counts(N, counts, full=3, local=3, warmup=0, chain=1, guidance=1.5, head_steps=(4, 3))
    late = whole.with_guidance([1.0, 1.0, 1.5, 1.5, 1.5, 1.5])
    assert [group.guided for group in late] == [False, True, True]
    rows: list[tuple[str, int]] = []
    spied = tiny.Spied(adapter, lambda kind, features: rows.append((kind, len(features))))
    end = run(spied, late).raster()
    assert [count for kind, count in rows if kind == "full"] == [2, 4, 4]
    # a scale of nearly 1 needs both branches and says the same
    nearly = [1.0 + 1e-9 if step.guidance == 1.0 else step.guidance for step in late.steps]
    assert distance(end, run(adapter, late.with_guidance(nearly)).raster()) < 1e-5


@families
def test_known_tokens_matter_and_values_at_masked_positions_do_not(family: str) -> None:
    adapter, masked = tiny.model(family), masks(2, 9, 0)
    schedule = cosine(9, full=3, local=2, warmup=0, head_steps=(4, 3), guidance=1.5 if adapter.guidable else 1.0)
    ends = []
    for inside, outside in ((9, 1), (9, 2), (3, 1)):
        tokens = tokens_of(adapter, 2, inside)
        tokens[masked] = tokens_of(adapter, 2, outside)[masked]
        seen = Overall(adapter)
        ends.append((run(seen, schedule, Known(tokens, masked)).raster()[masked], seen.seen[0]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert distance(ends[0][1], ends[2][1]) > 1e-3


@families
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_with_nothing_known_it_is_the_plain_run_draw_for_draw(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(N, adapter.guidable))
    known = Known(tokens_of(adapter), torch.ones(2, N, dtype=torch.bool))
    ours, own = run(adapter, schedule, known), run(adapter, schedule)
    assert torch.equal(ours.raster(), own.raster())
    assert torch.equal(ours.order, own.order)


@families
def test_a_run_that_goes_on_where_another_stopped(family: str) -> None:
    """What a run has decoded so far, given as known, is the same canvas: the next evaluation says the same."""
    watched = Overall(tiny.model(family))
    schedule = cosine(N, full=4, head_steps=(4, 3))
    labels, noise = tiny.labels(watched, 2), tiny.noise(2, SEED)
    steps = grouped_decode(watched, labels, schedule, watched.selector(), noise)
    canvas = [next(steps), next(steps)][-1]
    known = Known(canvas.raster(), canvas.masked)
    list(steps)
    run(watched, Schedule(schedule.groups[2:], known.count), known)
    assert distance(watched.seen[4], watched.seen[2]) < 1e-5


def test_random_order_is_random_after_the_known_ones() -> None:
    adapter = tiny.model("mar")
    masked = masks(2, 10, 3)
    known = Known(tokens_of(adapter), masked)
    canvas = run(adapter, cosine(10, full=2, head_steps=(4, 3)), known)
    order = tiny.noise(2, SEED).permutation(N)
    assert torch.equal(canvas.order, known.first(order))
    assert not take(masked, canvas.order)[:, :6].any()
    for image in range(2):
        assert canvas.order[image, 6:].tolist() == [p for p in order[image].tolist() if masked[image, p]]
    assert canvas.order[0, 6:].tolist() != sorted(canvas.order[0, 6:].tolist())


@families
@pytest.mark.parametrize("known", [0, 5, 12])
def test_the_cache_has_room_for_known_rows_and_no_more(family: str, known: int) -> None:
    adapter = tiny.model(family)
    schedule = cosine(N - known, full=2, local=2, warmup=0, head_steps=(4, 3))
    layout = adapter.cache_layout(schedule.knowing(known))
    built = cosine(N - known, full=2, local=2, warmup=0, head_steps=(4, 3), known=known)
    assert built == schedule.knowing(known)
    if family == "mar":  # the encoder holds the buffer and what arrived before the last local evaluation
        rows = {stack.name: stack.rows for stack in layout.stacks}
        assert rows["encoder"] == adapter.config.buffer + N - schedule.sizes[-1]
    made = adapter.new_cache(tiny.canvas(adapter, 2, 1), schedule.knowing(known))
    assert made.nbytes == layout.nbytes(2)
    run(adapter, schedule, Known(tokens_of(adapter), masks(2, N - known, 1)))  # fits


@families
def test_costs_count_what_is_known(family: str) -> None:
    """A run in two halves costs what the whole costs."""
    config = tiny.CONFIGS[family]
    whole = from_counts(N, [4, 4, 4, 4], full=2, local=2, warmup=0)
    first, rest = Schedule(whole.groups[:1]), Schedule(whole.groups[1:], known=8)
    halves = run_cost(config, first).transformer + run_cost(config, rest).transformer
    assert halves == run_cost(config, whole).transformer
    ranked = 8 if config.draws_candidates else 4  # of the 8 that are masked when the rest begins
    assert run_cost(config, rest).head == config.draw_flops(ranked, 100) + config.draw_flops(4, 50)
    assert run_cost(config, rest.plain()).total < run_cost(config, whole.plain()).total


def test_known_values_with_nan_are_noticed() -> None:
    adapter = tiny.model("mar")
    tokens, masked = tokens_of(adapter), masks(2, 10, 0)
    tokens[1][~masked[1]] = torch.nan
    canvas = run(adapter, cosine(10, full=2, head_steps=(4, 3)), Known(tokens, masked))
    assert canvas.finite.tolist() == [True, False]


def test_what_does_not_fit_is_refused() -> None:
    adapter = tiny.model("maskgit")
    tokens, masked = tokens_of(adapter), masks(2, 10, 0)
    known = Known(tokens, masked)
    assert known.count == 6
    for schedule, start, family, match in (
        (cosine(N, full=2), known, "maskgit", "decodes 16 tokens but 6 of the model's 16 are known; .* tokens=10"),
        (cosine(10, full=2, known=3), known, "maskgit", "begin with 3 known tokens but 6 are known; .* known=6"),
        (cosine(10, full=2, known=6), None, "maskgit", "begin with 6 known tokens but 0 are known"),
        (cosine(10, full=2), known, "mar", r"\(2, 16\) of torch.int64 but those of this model are \(2, 16, 4\)"),
        (cosine(256, full=2), None, "mage", "build it with tokens=16"),
        (cosine(N, full=2, guidance=2.0), None, "mage", "no null class"),
        (
            cosine(10, full=2, known=6),
            Known(tokens[:, :15], torch.arange(15).expand(2, -1) < 9),
            "maskgit",
            "2 images with 15 tokens",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            run(tiny.model(family), schedule, start)
    with pytest.raises(ValueError, match="decodes 10 tokens but the model has 16"):
        check_fit(adapter, cosine(10, full=2))
    with pytest.raises(ValueError, match="takes no labels"):
        next(grouped_decode(tiny.model("mage"), torch.tensor([1]), cosine(N, full=2), RandomOrder(), tiny.noise(1)))
    with pytest.raises(ValueError, match="give a label"):
        next(grouped_decode(tiny.model("mar"), None, cosine(N, full=2), RandomOrder(), tiny.noise(1)))
    with pytest.raises(ValueError, match="use RandomOrder"):
        tiny.run(tiny.model("mar"), cosine(N, full=2), selector=ConfidenceOrder())


def test_known_tokens_that_make_no_batch_are_refused() -> None:
    tokens, masked = tokens_of(tiny.model("maskgit")), masks(2, 10, 0)
    for wrong, match in (
        (torch.stack([masks(1, 10, 0)[0], masks(1, 9, 0)[0]]), "9 to 10 masked tokens"),
        (torch.zeros(2, N, dtype=torch.bool), "nothing to decode"),
        (masked.long(), r"of torch\.int64 for tokens"),
        (masked[:1], r"expected \(2, 16\)"),
    ):
        with pytest.raises(ValueError, match=match):
            Known(tokens, wrong)
