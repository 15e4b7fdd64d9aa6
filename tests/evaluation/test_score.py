"""The Inception Score: closed forms, a direct computation, and sums that do not depend on shards."""

import math

import pytest
import torch
from torch import Tensor

from recap.evaluation import ScoreSums

COUNT, CLASSES = 103, 11


def logits(count: int = COUNT, seed: int = 0) -> Tensor:
    return 3 * torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed))


def summed(x: Tensor, splits: int = 10, batch: int = 16, first: int = 0, step: int = 1) -> ScoreSums:
    """The sums of every `step`-th image from `first` on."""
    sums = ScoreSums(splits)
    numbers = torch.arange(len(x))[first::step]
    for start in range(0, len(numbers), batch):
        part = numbers[start : start + batch]
        sums.update(x[part], part)
    return sums


def direct(x: Tensor, splits: int) -> tuple[float, float]:
    """The definition, with all probabilities of a split at once."""
    scores = []
    for split in range(splits):
        p = x[split::splits].double().softmax(dim=1)
        divergences = (p * (p / p.mean(dim=0)).log()).sum(dim=1)
        scores.append(math.exp(divergences.mean()))
    mean = sum(scores) / splits
    return mean, math.sqrt(sum((score - mean) ** 2 for score in scores) / splits)


@pytest.mark.parametrize("splits", [1, 3, 10])
def test_the_definition_is_followed(splits: int) -> None:
    assert summed(logits(), splits).result() == pytest.approx(direct(logits(), splits), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_merge_to_the_whole(shards: int) -> None:
    merged = ScoreSums()
    for rank in range(shards):
        merged.merge(summed(logits(), batch=9, first=rank, step=shards))
    assert merged.count == COUNT
    assert merged.result() == pytest.approx(summed(logits(), batch=COUNT).result(), rel=1e-12)


def test_contiguous_shards_and_order_change_nothing() -> None:
    x, merged = logits(), ScoreSums()
    for numbers in reversed(torch.arange(COUNT).flip(0).chunk(4)):
        merged.update(x[numbers], numbers.tolist())
    assert merged.result() == pytest.approx(summed(x).result(), rel=1e-12)


def test_knowing_nothing_scores_one() -> None:
    assert summed(torch.zeros(50, CLASSES)).result() == pytest.approx((1, 0), abs=1e-12)
    assert summed(logits(1).repeat(50, 1)).result() == pytest.approx((1, 0), abs=1e-12)  # nor does one class alone


def test_certain_and_even_scores_the_number_of_classes() -> None:
    classes = torch.arange(10 * CLASSES) // 10 % CLASSES  # each split sees each class once
    certain = 1e4 * torch.eye(CLASSES)[classes]
    assert summed(certain).result() == pytest.approx((CLASSES, 0), abs=1e-10)


def test_an_image_belongs_to_the_split_of_its_number() -> None:
    sums = ScoreSums(2)
    sums.update(1e4 * torch.eye(4), [0, 2, 5, 7])  # two classes for either
    assert sums.result() == pytest.approx((2, 0), abs=1e-12)
    uneven = ScoreSums(2)
    uneven.update(1e4 * torch.eye(4), [0, 2, 4, 7])  # three, and one
    assert uneven.result() == pytest.approx((2, 1), abs=1e-12)


def test_empty_splits_are_left_out() -> None:
    sums = ScoreSums(10)
    sums.update(1e4 * torch.eye(3), [3, 13, 23])
    assert sums.result() == pytest.approx((3, 0), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_in_double_precision(dtype: torch.dtype) -> None:
    x = logits().to(dtype)
    assert summed(x).result() == summed(x.double()).result()
    assert summed(x).state()["sums"].dtype == torch.float64


def test_state_goes_on_where_it_was() -> None:
    x, numbers = logits(), torch.arange(COUNT)
    before = ScoreSums(7)
    before.update(x[:50], numbers[:50])
    result = before.result()
    after = ScoreSums.from_state(before.state())
    assert after.splits == 7
    assert after.result() == result
    after.update(x[50:], numbers[50:])
    assert after.result() == pytest.approx(summed(x, 7).result(), rel=1e-12)
    assert before.result() == result


def test_an_empty_state_comes_back() -> None:
    empty = ScoreSums.from_state(ScoreSums(4).state())
    assert (empty.splits, empty.count) == (4, 0)
    empty.merge(summed(logits(), 4))
    assert empty.result() == summed(logits(), 4).result()


def test_merging_leaves_the_other_alone() -> None:
    whole, part = ScoreSums(), summed(logits())
    expected = part.result()
    whole.merge(part)
    whole.update(logits(seed=1), range(COUNT))
    assert part.result() == expected


@pytest.mark.parametrize(
    ("values", "indices", "message"),
    [
        (torch.zeros(3), [0, 1, 2], r"\(3,\) of torch.float32 but \(n, classes\)"),
        (torch.zeros(2, 3, dtype=torch.int64), [0, 1], "of floats is expected"),
        (torch.zeros(2, CLASSES), [0], "1 indices came with 2 images"),
        (torch.zeros(2, 5), [0, 1], "logits of 5 classes cannot join those of 11"),
        (torch.full((1, CLASSES), math.inf), [0], "infinite or NaN"),
        (torch.zeros(1, CLASSES), [-1], "from -1 to -1"),
    ],
)
def test_wrong_batches_are_refused(values: Tensor, indices: list[int], message: str) -> None:
    sums = summed(logits())
    expected = sums.result()
    with pytest.raises(ValueError, match=message):
        sums.update(values, indices)
    assert sums.result() == expected


def test_what_has_no_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no Inception Score of 0 images"):
        ScoreSums().result()
    with pytest.raises(ValueError, match="splits=0"):
        ScoreSums(0)
    with pytest.raises(ValueError, match="5 splits cannot join 10"):
        ScoreSums().merge(ScoreSums(5))
    with pytest.raises(ValueError, match=r"the state has \['sums'\]"):
        ScoreSums.from_state({"sums": torch.zeros(2, 3)})
    with pytest.raises(ValueError, match=r"certainty \(3,\)"):
        ScoreSums.from_state(ScoreSums(2).state() | {"certainty": torch.zeros(3)})
