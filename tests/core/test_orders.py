"""Orders in which tokens that are drawn together lie far apart."""

import pytest
import torch
from torch import Tensor

from recap.core.orders import BlueNoiseOrder, HaltonOrder
from recap.core.protocols import Selector
from recap.core.schedule import cosine
from recap.core.selection import RandomOrder
from tests import tiny

SIDE, IMAGES = 16, 12
APART = [HaltonOrder(), BlueNoiseOrder()]


def nearest(positions: Tensor) -> Tensor:
    """How far the nearest other one of `positions` (B, n) is from each."""
    places = torch.stack([positions // SIDE, positions % SIDE], dim=-1).double()
    return (torch.cdist(places, places) + torch.eye(positions.shape[1]) * 2 * SIDE).amin(dim=2)


def order_of(selector: Selector, size: int = SIDE**2) -> Tensor:
    return selector.order(size, tiny.noise(IMAGES))


@pytest.mark.parametrize("selector", APART)
@pytest.mark.parametrize("size", [1, 4, 36, 49, 256])
def test_every_image_has_every_position_once(selector: Selector, size: int) -> None:
    assert torch.equal(order_of(selector, size).sort(dim=1).values, torch.arange(size).repeat(IMAGES, 1))


@pytest.mark.parametrize("selector", APART)
def test_an_order_is_of_its_image_alone(selector: Selector) -> None:
    together = order_of(selector)
    alone = [selector.order(SIDE**2, tiny.noise(1, first=image)) for image in range(IMAGES)]
    assert torch.equal(together, torch.cat(alone))
    assert len(set(map(tuple, together.tolist()))) == IMAGES
    assert len(set(selector.order(SIDE**2, tiny.noise(100))[:, 0].tolist())) > 50  # any position may be the first


@pytest.mark.parametrize(("selector", "most"), [(HaltonOrder(), 40), (BlueNoiseOrder(), 64)])
def test_the_first_positions_are_farther_apart_than_random_ones(selector: Selector, most: int) -> None:
    """Halton points come close to each other sooner, as their grid of powers of 3 does not fit into this one."""
    ours, random = order_of(selector), order_of(RandomOrder())
    for k in range(4, most + 1):
        least, others = (nearest(order[:, :k]).amin(dim=1).mean() for order in (ours, random))
        assert least > others, k


@pytest.mark.parametrize("selector", APART)
@pytest.mark.parametrize("steps", [16, 32, 64])
def test_tokens_of_one_sub_step_are_farther_apart_than_random_ones(selector: Selector, steps: int) -> None:
    sizes = list(cosine(SIDE**2, full=steps).sizes)

    def apart(order: Tensor) -> float:
        parts = torch.split(order, sizes, dim=1)
        return torch.cat([nearest(part) for part in parts if part.shape[1] > 1], dim=1).mean().item()

    assert apart(order_of(selector)) > 1.1 * apart(order_of(RandomOrder()))


@pytest.mark.parametrize("selector", APART)
def test_edges_of_the_grid_come_no_sooner_than_the_rest(selector: Selector) -> None:
    first = selector.order(SIDE**2, tiny.noise(100))[:, : 2 * SIDE]
    rows, columns = first // SIDE, first % SIDE
    edge = torch.stack([rows, columns, SIDE - 1 - rows, SIDE - 1 - columns]).amin(dim=0) == 0
    share = 4 * (SIDE - 1) / SIDE**2
    assert abs(edge.double().mean().item() - share) < 0.1 * share


@pytest.mark.parametrize("selector", APART)
def test_a_grid_that_is_no_square_is_refused(selector: Selector) -> None:
    with pytest.raises(ValueError, match=r"15 tokens, .* use order=random"):
        selector.order(15, tiny.noise(1))
