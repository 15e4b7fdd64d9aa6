import itertools
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from recap.core.decode import grouped_decode
from recap.core.noise import Noise
from recap.core.schedule import Ramp, Schedule, cosine, from_counts, power
from recap.core.selection import ConfidenceOrder, RandomOrder
from recap.models.adapter import Adapter
from recap.verification.verifier import distance
from tests import tiny
from tests.models import plain

SEED = 5


def decode(adapter: Adapter, family: str, schedule: Schedule, batch: int, first: int = 0) -> Tensor:
    return tiny.sample(adapter, schedule, batch, seed=SEED, selector=tiny.selector(family), first=first)


@st.composite
def schedules(draw: Any, guided: bool, local: bool = True) -> Schedule:
    """Any split of 16 tokens into sub-steps, and of these into groups."""
    cuts = draw(st.sets(st.integers(1, 15)))
    edges = [0, *sorted(cuts), 16]
    counts = [b - a for a, b in itertools.pairwise(edges)]
    steps = len(counts)
    chain = draw(st.integers(1, 4))
    full = draw(st.integers(-(-steps // (1 + chain)), steps)) if local else steps
    return from_counts(
        16,
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
    )


@pytest.mark.parametrize("family", tiny.FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_schedule_decodes_every_token_and_never_touches_it_again(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(guided=adapter.guidable))
    seen: list[tuple[Tensor, Tensor]] = []
    steps = 0
    for canvas in grouped_decode(
        adapter, tiny.labels(adapter, 2), schedule, tiny.selector(family), tiny.noise(2, SEED)
    ):
        steps += 1
        assert canvas.decoded == sum(schedule.sizes[:steps])
        for tokens, order in seen:
            n = tokens.shape[1]
            assert torch.equal(canvas.tokens[:, :n], tokens)
            assert torch.equal(canvas.order[:, :n], order)
        seen.append((canvas.tokens[:, : canvas.decoded].clone(), canvas.order[:, : canvas.decoded].clone()))
    assert steps == len(schedule.steps)
    assert torch.equal(seen[-1][1].sort(dim=1).values, torch.arange(16).expand(2, -1))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_an_image_is_the_same_in_any_batch(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(guided=adapter.guidable))
    together = decode(adapter, family, schedule, 3)
    for image in range(3):
        assert distance(decode(adapter, family, schedule, 1, image), together[image : image + 1]) <= 1e-5


@pytest.mark.parametrize("family", ["mage", "maskgit"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_no_local_steps_is_plain_decoding_of_ids(family: str, data: st.DataObject) -> None:
    adapter = tiny.model(family)
    schedule = data.draw(schedules(guided=adapter.guidable, local=False))
    ours = decode(adapter, family, schedule, 2)
    with torch.no_grad():
        for image in range(2):
            label = image if adapter.classes else None
            assert ours[image].tolist() == plain.decode_ids(adapter.module, label, schedule, SEED, image)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_local_steps_is_plain_decoding_of_latents(data: st.DataObject) -> None:
    adapter = tiny.model("mar")
    schedule = data.draw(schedules(guided=True, local=False))
    ours = decode(adapter, "mar", schedule, 2)
    with torch.no_grad():
        for image in range(2):
            theirs = plain.decode_latents(adapter.module, image, schedule, SEED, image)
            assert distance(ours[image], theirs) <= 1e-5


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_local_steps_change_little_but_something(family: str) -> None:
    """Reuse is an approximation: were grouped and plain runs equal, nothing would have been reused."""
    adapter = tiny.model(family)
    grouped = cosine(16, full=4, local=4, warmup=0, choice_temperature=1.0, head_steps=(5, 5))
    full_only = cosine(16, full=8, choice_temperature=1.0, head_steps=(5, 5))
    assert not torch.equal(decode(adapter, family, grouped, 2), decode(adapter, family, full_only, 2))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_run_leaves_the_network_as_it_was(family: str) -> None:
    adapter = tiny.model(family)
    before = {key: value.clone() for key, value in adapter.module.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in adapter.module.named_modules()}
    decode(adapter, family, power(16, full=4, local=2), 2)
    assert all(torch.equal(before[key], value) for key, value in adapter.module.state_dict().items())
    assert attributes == {name: set(vars(module)) for name, module in adapter.module.named_modules()}


def test_random_order_also_serves_models_with_confidence() -> None:
    adapter = tiny.model("maskgit")
    schedule = cosine(16, full=3, local=3, warmup=0)
    *_, canvas = grouped_decode(adapter, tiny.labels(adapter, 2), schedule, RandomOrder(), tiny.noise(2))
    assert torch.equal(canvas.order, tiny.noise(2).permutation(16))


def test_latents_have_no_confidence_to_order_by() -> None:
    adapter = tiny.model("mar")
    steps = grouped_decode(adapter, tiny.labels(adapter, 1), cosine(16, full=2), ConfidenceOrder(), tiny.noise(1))
    with pytest.raises(ValueError, match="use RandomOrder"):
        next(steps)


def test_schedules_that_do_not_fit_are_refused_before_any_work() -> None:
    adapter = tiny.model("mage")
    with pytest.raises(ValueError, match="build it with tokens=16"):
        next(grouped_decode(adapter, None, cosine(256, full=2), ConfidenceOrder(), tiny.noise(1)))
    with pytest.raises(ValueError, match="no null class"):
        next(grouped_decode(adapter, None, cosine(16, full=2, guidance=2.0), ConfidenceOrder(), tiny.noise(1)))
    with pytest.raises(ValueError, match="takes no labels"):
        next(grouped_decode(adapter, torch.tensor([1]), cosine(16, full=2), ConfidenceOrder(), tiny.noise(1)))
    with pytest.raises(ValueError, match="give a label"):
        next(grouped_decode(tiny.model("mar"), None, cosine(16, full=2), RandomOrder(), tiny.noise(1)))


class ShapesOnly(Noise):
    """Noise without values."""

    def uniform(self, *shape: int) -> Tensor:
        return torch.empty((len(self), *shape), device="meta")

    normal = uniform

    def permutation(self, n: int) -> Tensor:
        return torch.empty((len(self), n), dtype=torch.long, device="meta")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_no_shape_and_no_branch_depends_on_a_value(family: str) -> None:
    """A whole run on tensors that have no values: whatever asked for one would fail here."""
    adapter = tiny.model(family)
    adapter.module.to("meta")
    labels = tiny.labels(adapter, 2)
    guidance = Ramp(1.0, 2.0) if adapter.guidable else 1.0
    schedule = cosine(16, full=3, local=5, chain=3, guidance=guidance, rank_temperature=1.0, head_steps=(4, 3))
    noise = ShapesOnly([torch.Generator(), torch.Generator()], "meta")
    labels = None if labels is None else labels.to("meta")
    steps = list(grouped_decode(adapter, labels, schedule, tiny.selector(family), noise))
    assert len(steps) == 8
    assert steps[-1].raster().shape[:2] == (2, 16)


@pytest.mark.parametrize("family", ["mar", "maskgit"])
def test_where_there_is_no_guidance_there_is_no_second_branch(family: str) -> None:
    bound: dict[str, Any] = {"token_bound": 2.0} if family == "mar" else {}
    adapter = tiny.model(family, **bound)
    counts = [2, 3, 3, 4, 2, 2]
    whole = from_counts(16, counts, full=3, local=3, warmup=0, chain=1, guidance=1.5, head_steps=(4, 3))
    late = whole.with_guidance([1.0, 1.0, 1.5, 1.5, 1.5, 1.5])
    assert [group.guided for group in late] == [False, True, True]
    rows = []
    spied = tiny.Spied(adapter, lambda kind, features: rows.append((kind, len(features))))
    ends = [decode(spied, family, late, 2)]
    assert [count for kind, count in rows if kind == "full"] == [2, 4, 4]
    # a scale of nearly 1 needs both branches and says the same
    nearly = [1.0 + 1e-9 if step.guidance == 1.0 else step.guidance for step in late.steps]
    ends.append(decode(adapter, family, late.with_guidance(nearly), 2))
    assert distance(ends[0], ends[1]) < 1e-5
