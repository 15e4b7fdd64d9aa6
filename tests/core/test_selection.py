"""Orders that are chosen instead of drawn."""

from typing import Any

import pytest
import torch

from recap.core.decode import grouped_decode
from recap.core.orders import BlueNoiseOrder, HaltonOrder
from recap.core.schedule import cosine
from recap.core.selection import FixedOrder, RandomOrder
from tests import tiny


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("selector", [FixedOrder(range(15, -1, -1)), HaltonOrder(), BlueNoiseOrder()])
def test_tokens_arrive_in_the_order_that_was_chosen(family: str, selector: Any) -> None:
    adapter = tiny.model(family)
    schedule = cosine(16, full=3, local=3, warmup=0, rank_temperature=1.0, head_steps=(4, 3))
    expected = selector.order(16, tiny.noise(2))
    for canvas in grouped_decode(adapter, tiny.labels(adapter, 2), schedule, selector, tiny.noise(2)):
        masked = torch.ones(2, 16, dtype=torch.bool).scatter(1, expected[:, : canvas.decoded], False)
        assert torch.equal(canvas.masked, masked)
        assert canvas.cache_rows is None
    assert canvas.finite.all()


def test_an_order_names_every_position_once() -> None:
    assert FixedOrder(torch.tensor([1, 0, 2])).positions == (1, 0, 2)
    for wrong in ([0, 0, 1], [1, 2, 3], [0, 1, 5]):
        with pytest.raises(ValueError, match="leaves out position"):
            FixedOrder(wrong)
    with pytest.raises(ValueError, match="3 positions but the model has 16"):
        FixedOrder([2, 1, 0]).order(16, tiny.noise(1))


def test_random_order_also_serves_models_with_confidence() -> None:
    canvas = tiny.run(tiny.model("maskgit"), cosine(16, full=3, local=3, warmup=0), selector=RandomOrder())
    assert torch.equal(canvas.order, tiny.noise(2).permutation(16))
