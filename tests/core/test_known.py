"""Runs that begin with a partly known canvas."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.core.canvas import Canvas, Known, take
from recap.core.costs import plain_cost, run_cost
from recap.core.decode import check_fit, grouped_decode
from recap.core.schedule import Ramp, Schedule, cosine, from_counts
from recap.models.adapter import Adapter
from recap.verification.verifier import distance
from tests import tiny

N = 16


@st.composite
def counts_of(draw: Any, tokens: int) -> list[int]:
    """Any split of `tokens` into sub-steps."""
    cuts = sorted(draw(st.sets(st.integers(1, tokens - 1)))) if tokens > 1 else []
    return [b - a for a, b in zip([0, *cuts], [*cuts, tokens], strict=True)]


@st.composite
def schedules(draw: Any, tokens: int, guided: bool, local: bool = True) -> Schedule:
    counts, chain = draw(counts_of(tokens)), draw(st.integers(1, 3))
    full = draw(st.integers(-(-len(counts) // (chain + 1)), len(counts))) if local else len(counts)
    return from_counts(
        tokens,
        counts,
        full=full,
        local=len(counts) - full,
        warmup=draw(st.integers(0, full)),
        chain=chain,
        rank_temperature=draw(st.sampled_from([None, 1.0])),
        choice_temperature=draw(st.sampled_from([0.0, 3.0])),
        guidance=draw(st.sampled_from([1.0, 1.5, Ramp(1.0, 2.0)])) if guided else 1.0,
        head_steps=(4, 3),
    )


def random_tokens(adapter: Adapter, batch: int, seed: int = 9) -> Tensor:
    return tiny.values(adapter, batch, N, seed).values


def masks(batch: int, masked: int, seed: int) -> Tensor:
    """As many masked positions in every image, at places of its own."""
    return tiny.noise(batch, seed).permutation(N) < masked


def run(adapter: Adapter, family: str, schedule: Schedule, known: Known | None, first: int = 0) -> Canvas:
    batch = 2 if known is None else len(known.masked)
    labels = tiny.labels(adapter, first + batch)
    labels = None if labels is None else labels[first:]
    noise = tiny.noise(batch, 5, first)
    *_, canvas = grouped_decode(adapter, labels, schedule, tiny.selector(family), noise, known)
    return canvas


@pytest.mark.parametrize("family", tiny.FAMILIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), masked=st.integers(1, N), seed=st.integers(0, 99))
def test_known_tokens_never_change_and_all_others_are_drawn(
    family: str, data: st.DataObject, masked: int, seed: int
) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(masked, adapter.guidable))
    known = Known(random_tokens(adapter, 2), masks(2, masked, seed))
    kept = ~known.masked
    sizes = list(schedule.sizes)
    labels, noise = tiny.labels(adapter, 2), tiny.noise(2, seed)
    for canvas in grouped_decode(adapter, labels, schedule, tiny.selector(family), noise, known):
        assert torch.equal(canvas.raster()[kept], known.tokens[kept])
        assert not (canvas.masked & kept).any()
        assert canvas.masked.sum(dim=1).tolist() == [masked - sizes[0]] * 2
        sizes = [sizes[0] + sizes[1], *sizes[2:]] if len(sizes) > 1 else []
    assert not sizes
    assert canvas.finite.all()
    if family != "mar":
        assert canvas.raster().max() < adapter.config.codes


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_values_at_masked_positions_are_never_looked_at(family: str) -> None:
    adapter = tiny.model(family)
    masked = masks(2, 9, 0)
    schedule = cosine(9, full=3, local=2, warmup=0, head_steps=(4, 3), guidance=1.5 if adapter.guidable else 1.0)
    ends = []
    for seed in (1, 2):
        tokens = random_tokens(adapter, 2)
        tokens[masked] = random_tokens(adapter, 2, seed)[masked]
        ends.append(run(adapter, family, schedule, Known(tokens, masked)).raster())
    assert torch.equal(*ends)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_known_tokens_matter(family: str) -> None:
    adapter = tiny.model(family)
    masked = masks(2, 6, 0)
    seen = []

    def full(canvas: Canvas, cache: Any, wanted: slice) -> Tensor:
        seen.append(adapter.full(canvas, cache, wanted))
        return seen[-1]

    for seed in (1, 2):
        known = Known(random_tokens(adapter, 2, seed), masked)
        run(adapter.replace(full=full), family, cosine(6, full=1, head_steps=(4, 3)), known)
    assert distance(*seen) > 1e-3


@pytest.mark.parametrize("family", tiny.FAMILIES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_with_nothing_known_it_is_the_plain_run_draw_for_draw(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(N, adapter.guidable))
    known = Known(random_tokens(adapter, 2), torch.ones(2, N, dtype=torch.bool))
    ours, plain = run(adapter, family, schedule, known), run(adapter, family, schedule, None)
    assert torch.equal(ours.raster(), plain.raster())
    assert torch.equal(ours.order, plain.order)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@settings(max_examples=10, deadline=None)
@given(data=st.data(), masked=st.integers(1, N))
def test_an_image_is_the_same_in_any_batch(family: str, data: st.DataObject, masked: int) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(masked, adapter.guidable))
    known = Known(random_tokens(adapter, 3), masks(3, masked, 4))
    together = run(adapter, family, schedule, known).raster()
    for i in range(3):
        alone = Known(known.tokens[i : i + 1], known.masked[i : i + 1])
        assert distance(run(adapter, family, schedule, alone, i).raster(), together[i : i + 1]) <= 1e-5


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_run_that_goes_on_where_another_stopped(family: str) -> None:
    """What a run has decoded so far, given as known, is the same canvas: the next evaluation says the same."""
    adapter = tiny.model(family)
    schedule = cosine(N, full=4, head_steps=(4, 3))
    steps = grouped_decode(adapter, tiny.labels(adapter, 2), schedule, tiny.selector(family), tiny.noise(2, 5))
    canvas = [next(steps), next(steps)][-1]
    known = Known(canvas.raster(), canvas.masked)
    rest = Schedule(schedule.groups[2:], known.count)
    seen = []

    def full(other: Canvas, cache: Any, wanted: slice) -> Tensor:
        features = adapter.full(other, cache, slice(0, N))
        seen.append(torch.empty_like(features).scatter(1, other.order.unsqueeze(2).expand_as(features), features))
        return features[:, wanted]

    with torch.inference_mode():
        full(canvas, None, slice(0, N))
    run(adapter.replace(full=full), family, rest, known)
    assert distance(seen[1], seen[0]) < 1e-5


def test_random_order_is_random_after_the_known_ones() -> None:
    adapter = tiny.model("mar")
    masked = masks(2, 10, 3)
    known = Known(random_tokens(adapter, 2), masked)
    canvas = run(adapter, "mar", cosine(10, full=2, head_steps=(4, 3)), known)
    order = tiny.noise(2, 5).permutation(N)
    assert torch.equal(canvas.order, known.first(order))
    assert not take(masked, canvas.order)[:, :6].any()
    for image in range(2):
        assert canvas.order[image, 6:].tolist() == [p for p in order[image].tolist() if masked[image, p]]
    assert canvas.order[0, 6:].tolist() != sorted(canvas.order[0, 6:].tolist())


@pytest.mark.parametrize("family", tiny.FAMILIES)
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
    made = []

    def new_cache(canvas: Canvas, schedule: Schedule) -> Any:
        made.append(adapter.new_cache(canvas, schedule))
        return made[-1]

    start = Known(random_tokens(adapter, 2), masks(2, N - known, 1))
    run(adapter.replace(new_cache=new_cache), family, schedule, start)
    assert made[0].nbytes == layout.nbytes(2)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_costs_count_what_is_known(family: str) -> None:
    """A run in two halves costs what the whole costs."""
    config = tiny.CONFIGS[family]
    whole = from_counts(N, [4, 4, 4, 4], full=2, local=2, warmup=0)
    first = whole.groups[0]
    rest = Schedule((whole.groups[1],), known=8)
    alone = run_cost(config, Schedule((first,), known=0)), run_cost(config, rest)
    assert alone[0].transformer + alone[1].transformer == run_cost(config, whole).transformer
    ranked = 8 if config.draws_candidates else 4  # of the 8 that are masked when the rest begins
    assert run_cost(config, rest).head == config.draw_flops(ranked, 100) + config.draw_flops(4, 50)
    assert plain_cost(config, rest).total < plain_cost(config, whole).total


def test_guidance_grows_with_the_share_of_all_tokens() -> None:
    schedule = cosine(8, full=4, guidance=Ramp(1.0, 3.0), known=8)
    shares = [8 + sum(schedule.sizes[: s + 1]) for s in range(4)]
    assert [step.guidance for step in schedule.steps] == [1 + 2 * share / 16 for share in shares]
    assert schedule.with_guidance(Ramp(1.0, 3.0)) == schedule
    assert schedule.with_guidance(2.0).known == 8


def test_what_does_not_fit_is_refused() -> None:
    adapter = tiny.model("maskgit")
    tokens, masked = random_tokens(adapter, 2), masks(2, 10, 0)
    known = Known(tokens, masked)
    assert known.count == 6

    def start(schedule: Schedule, known: Known | None, family: str = "maskgit") -> None:
        run(tiny.model(family), family, schedule, known)

    with pytest.raises(
        ValueError, match="decodes 16 tokens but 6 of the model's 16 are known; build it with tokens=10"
    ):
        start(cosine(N, full=2), known)
    with pytest.raises(ValueError, match="begin with 3 known tokens but 6 are known; build it with known=6"):
        start(cosine(10, full=2, known=3), known)
    with pytest.raises(ValueError, match="begin with 6 known tokens but 0 are known"):
        start(cosine(10, full=2, known=6), None)
    with pytest.raises(ValueError, match="decodes 10 tokens but the model has 16"):
        check_fit(adapter, cosine(10, full=2))
    with pytest.raises(ValueError, match=r"\(2, 16\) of torch.int64 but those of this model are \(2, 16, 4\)"):
        start(cosine(10, full=2), known, "mar")
    with pytest.raises(ValueError, match="2 images with 15 tokens"):
        start(cosine(10, full=2, known=6), Known(tokens[:, :15], torch.arange(15).expand(2, -1) < 9))
    with pytest.raises(ValueError, match="9 to 10 masked tokens"):
        Known(tokens, torch.stack([masks(1, 10, 0)[0], masks(1, 9, 0)[0]]))
    with pytest.raises(ValueError, match="nothing to decode"):
        Known(tokens, torch.zeros(2, N, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"of torch\.int64 for tokens"):
        Known(tokens, masked.long())
    with pytest.raises(ValueError, match=r"expected \(2, 16\)"):
        Known(tokens, masked[:1])
    with pytest.raises(ValueError, match="known is -1"):
        cosine(10, full=2, known=-1)


def test_known_values_with_nan_are_noticed() -> None:
    adapter = tiny.model("mar")
    tokens, masked = random_tokens(adapter, 2), masks(2, 10, 0)
    tokens[1][~masked[1]] = torch.nan
    canvas = run(adapter, "mar", cosine(10, full=2, head_steps=(4, 3)), Known(tokens, masked))
    assert canvas.finite.tolist() == [True, False]
