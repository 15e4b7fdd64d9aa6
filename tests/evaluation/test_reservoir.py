"""The reservoir: a choice that depends on the images alone, and nothing lost on the way."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from recap.evaluation import FeatureReservoir

COUNT, CAPACITY = 300, 40


def feature(numbers: Sequence[int] | Tensor) -> Tensor:
    """Features that tell which image they belong to."""
    return torch.as_tensor(numbers).float()[:, None] * torch.tensor([1.0, -2.0, 0.5])


def filled(numbers: Sequence[int], batch: int = 300, seed: int = 0, capacity: int = CAPACITY) -> FeatureReservoir:
    reservoir = FeatureReservoir(capacity, seed)
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        reservoir.update(feature(part), part)
    return reservoir


def check_equal(a: FeatureReservoir, b: FeatureReservoir) -> None:
    assert torch.equal(a.indices, b.indices)
    assert torch.equal(a.features, b.features)


def test_features_stay_with_their_images() -> None:
    reservoir = filled(range(COUNT))
    assert len(reservoir) == len(reservoir.indices) == CAPACITY
    assert reservoir.features.shape == (CAPACITY, 3)
    assert reservoir.features.dtype == torch.float32
    assert (reservoir.indices.diff() > 0).all()  # rising, none twice
    assert torch.equal(reservoir.features, feature(reservoir.indices))


def test_all_are_kept_while_there_is_room() -> None:
    reservoir = filled([9, 4, 7], capacity=3)
    assert reservoir.indices.tolist() == [4, 7, 9]
    assert torch.equal(reservoir.features, feature([4, 7, 9]))


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_batches_and_order_change_nothing(batch: int) -> None:
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(batch)).tolist()
    check_equal(filled(order, batch), filled(range(COUNT)))


@pytest.mark.parametrize("shards", [2, 5, 100])
def test_shards_merge_to_the_whole(shards: int) -> None:
    merged = FeatureReservoir(CAPACITY)
    for rank in reversed(range(shards)):
        merged.merge(filled(range(rank, COUNT, shards), batch=11))
    check_equal(merged, filled(range(COUNT)))


def test_merging_leaves_the_other_alone() -> None:
    whole, part = FeatureReservoir(CAPACITY), filled(range(100))
    whole.merge(part)
    whole.update(feature(range(100, 200)), range(100, 200))
    check_equal(part, filled(range(100)))


def test_the_choice_is_even_and_follows_the_seed() -> None:
    count, capacity = 4000, 1000
    chosen = [set(filled(range(count), seed=seed, capacity=capacity).indices.tolist()) for seed in range(2)]
    assert chosen[0] != chosen[1]
    # a quarter of a quarter is shared by chance, and each thousand and each residue has its share
    assert len(chosen[0] & chosen[1]) == pytest.approx(250, abs=60)
    for part in [range(1000), range(3000, 4000), range(0, 4000, 4), range(3, 4000, 4)]:
        assert len(chosen[0] & set(part)) == pytest.approx(250, abs=60)


def test_the_choice_is_the_same_on_every_machine() -> None:
    assert filled(range(1000), capacity=5).indices.tolist() == [250, 286, 728, 781, 844]


def test_state_goes_on_where_it_was() -> None:
    before = filled(range(150))
    after = FeatureReservoir.from_state(before.state())
    check_equal(after, before)
    assert (after.capacity, after.seed) == (before.capacity, before.seed)
    after.update(feature(range(150, COUNT)), range(150, COUNT))
    check_equal(after, filled(range(COUNT)))
    check_equal(before, filled(range(150)))


def test_an_empty_state_comes_back() -> None:
    empty = FeatureReservoir.from_state(FeatureReservoir(7, seed=3).state())
    assert (len(empty), empty.capacity, empty.seed) == (0, 7, 3)
    assert empty.features.shape == (0, 0)


def test_batches_are_copied() -> None:
    batch, reservoir = feature([1, 2]), FeatureReservoir(5)
    reservoir.update(batch, [1, 2])
    batch.zero_()
    assert torch.equal(reservoir.features, feature([1, 2]))


def test_an_empty_batch_changes_nothing() -> None:
    reservoir = filled(range(10))
    reservoir.update(torch.zeros(0, 3), [])
    check_equal(reservoir, filled(range(10)))


def test_numbers_may_be_a_tensor() -> None:
    reservoir = FeatureReservoir(5)
    reservoir.update(feature([3, 1]).double(), torch.tensor([3, 1], dtype=torch.int32))
    assert reservoir.indices.tolist() == [1, 3]


def test_an_image_comes_once() -> None:
    reservoir = filled(range(COUNT))
    gone = next(number for number in range(COUNT) if number not in reservoir.indices.tolist())
    for number in (gone, int(reservoir.indices[0])):  # no matter whether it was kept
        with pytest.raises(ValueError, match=f"among them {number};"):
            reservoir.update(feature([number]), [number])
        with pytest.raises(ValueError, match="came twice"):
            reservoir.merge(filled([number]))
        with pytest.raises(ValueError, match="came twice"):
            FeatureReservoir.from_state(reservoir.state()).update(feature([number]), [number])
    with pytest.raises(ValueError, match="among them 500;"):
        reservoir.update(feature([500, 501, 500]), [500, 501, 500])
    check_equal(reservoir, filled(range(COUNT)))


@pytest.mark.parametrize(
    ("features", "indices", "message"),
    [
        (torch.zeros(3), [0, 1, 2], r"\(3,\) but \(n, F\)"),
        (torch.zeros(2, 3), [0, 1, 2], "3 indices came with 2 images"),
        (torch.zeros(2, 4), [0, 1], "features of size 4 cannot join those of size 3"),
        (torch.full((1, 3), math.nan), [0], "infinite or NaN"),
        (torch.zeros(2, 3), [0, -1], "from -1 to 0"),
        (torch.zeros(1, 3), torch.zeros(1), r"\(1,\) of torch.float32"),
        (torch.zeros(1, 3), [0.5], "something else than integers"),
    ],
)
def test_wrong_batches_are_refused(features: Tensor, indices: Sequence[int] | Tensor, message: str) -> None:
    reservoir = filled([70, 71])
    with pytest.raises(ValueError, match=message):
        reservoir.update(features, indices)
    check_equal(reservoir, filled([70, 71]))


def test_shards_must_be_alike() -> None:
    for other in (FeatureReservoir(8), FeatureReservoir(7, seed=1)):
        with pytest.raises(ValueError, match="build all shards alike"):
            FeatureReservoir(7).merge(other)


@pytest.mark.parametrize(("capacity", "seed"), [(0, 0), (1, -1), (1, 2**63)])
def test_settings_without_a_meaning_are_refused(capacity: int, seed: int) -> None:
    with pytest.raises(ValueError, match=f"capacity={capacity} and seed={seed}"):
        FeatureReservoir(capacity, seed)


def test_states_of_something_else_are_refused() -> None:
    state = filled(range(COUNT)).state()
    with pytest.raises(ValueError, match="that of a reservoir has"):
        FeatureReservoir.from_state({"features": state["features"]})
    with pytest.raises(ValueError, match="indices came with"):
        FeatureReservoir.from_state(state | {"indices": state["indices"][1:]})
    with pytest.raises(ValueError, match="write it again"):
        FeatureReservoir.from_state(state | {"seen": state["seen"][:0]})
