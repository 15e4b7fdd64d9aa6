"""What schedules lose: nothing where they are exact, less with more sub-steps, more with old features."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recap import Pipeline, SamplingOptions
from recap.core.heads import CategoricalHead
from recap.core.schedule import Schedule, from_counts
from recap.models.adapter import Adapter
from recap.runs.draw import draw
from recap.tuning.agreement import agreement
from tests import tiny


def pipeline(model: Adapter) -> Pipeline:
    return Pipeline(
        model, options=SamplingOptions(preset="mar" if "mar" in type(model.config).__name__.lower() else "mage")
    )


def losses(model: Adapter, schedule: Schedule | str, num: int = 6, batch: int = 3) -> Tensor:
    pipe = pipeline(model)
    labels = [index % model.classes for index in range(num)] if model.classes else None
    return agreement(pipe, pipe.works(labels, num, schedule, seed=0), batch).loss


def one_by_one(model: Adapter, full: int, **options: float) -> Schedule:
    """A token in every sub-step."""
    size = model.num_tokens
    if not isinstance(model.head, CategoricalHead):
        options = {**options, "choice_temperature": 0.0}
    guidance = 1.5 if model.guidable else 1.0
    values = {"full": full, "local": size - full, "chain": 3, "warmup": 0, "guidance": guidance, "head_steps": (3, 2)}
    return from_counts(size, [1] * size, **{**values, **options})


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_token_by_token_nothing_is_lost(family: str) -> None:
    model = tiny.model(family)
    assert losses(model, one_by_one(model, model.num_tokens)).max() < 1e-6


@pytest.mark.parametrize("target", [1, 3])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_old_features_lose_something_unless_local_evaluations_are_exact(family: str, target: int) -> None:
    deep, flat = tiny.model(family), tiny.model(family).single_layer()
    exact, stale = (losses(model, one_by_one(model, 6, target=target)) for model in (flat, deep))
    assert exact.max() < 1e-6 < 1e-5 < stale.sum(dim=1).mean()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_more_sub_steps_lose_less(family: str) -> None:
    means = [losses(tiny.model(family), text, num=12, batch=12).sum(dim=1).mean() for text in ("2", "4", "8", "16")]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 1e-6 < means[0]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_batches_of_equal_parity_agree(family: str) -> None:
    """The middle of an even number turns with the batch; the first batch is the same whatever follows."""
    model = tiny.model(family)
    if not isinstance(model.head, CategoricalHead):
        return  # the surrogate's scale is the variance of a batch
    torch.testing.assert_close(losses(model, "4+2", num=3), losses(model, "4+2", num=6)[:3])


def test_two_tokens_are_measured_as_the_chain_rule_says() -> None:
    """Given none of them nothing is lost in a full evaluation, given one what it says of the other."""
    model = tiny.model("mage")
    size = model.num_tokens
    schedule = from_counts(size, [1] * (size - 2) + [2])
    both = losses(model, schedule, num=6, batch=3)[:, -1].view(2, 3)  # batches of either parity
    none, one = sorted(both, key=lambda loss: float(loss.sum()))
    assert none.max() < 1e-6
    assert one.min() > 1e-6


def test_measuring_changes_no_image() -> None:
    pipe = pipeline(tiny.model("maskgit"))
    own = pipe.model
    works = pipe.works([0, 1], 2, "4+4:warmup=0,order=informed,target=2", seed=0)
    before = [result.tokens for result in draw(pipe, works, decode=False)]
    agreement(pipe, works, 1)
    assert pipe.model is own
    assert all(map(torch.equal, before, [result.tokens for result in draw(pipe, works, decode=False)]))


def test_temperature_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature of 0"):
        losses(tiny.model("mage"), "4:temperature=0")


def test_choice_is_where_the_surest_draws_are_kept() -> None:
    """Nothing on average without it."""
    pipe = pipeline(tiny.model("mage"))
    chosen, free = (
        agreement(pipe, pipe.works(None, 64, options, seed=0), 64).choice.sum(dim=1)
        for options in (
            SamplingOptions(full=4, order=order, choice_temperature=0.0) for order in ("confidence", "random")
        )
    )
    error = float(free.std() / len(free) ** 0.5)
    assert abs(float(free.mean())) < 4 * error < float(chosen.mean())
