"""Precision and recall: known answers, the definition, and blocks that change nothing."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from recap.evaluation import precision_recall


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small matrices are not worth sharing, and threads that wait for each other on busy cores take far longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def features(count: int, size: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def direct(points: Tensor, others: Tensor, neighbours: int) -> float:
    """The share of points within reach of one of the others, one pair at a time."""
    reach = [
        sorted(float((u - v).norm()) for j, v in enumerate(others) if j != i)[neighbours - 1]
        for i, u in enumerate(others)
    ]
    near = [any(float((p - v).norm()) <= r for v, r in zip(others, reach, strict=True)) for p in points]
    return sum(near) / len(near)


@pytest.mark.parametrize("neighbours", [1, 3, 5])
def test_the_definition_is_followed(neighbours: int) -> None:
    real, ours = features(40), features(31, seed=1) * 1.5 + 0.4
    precision, recall = precision_recall(real, ours, neighbours=neighbours, block=7)
    assert precision == direct(ours, real, neighbours)
    assert recall == direct(real, ours, neighbours)
    assert 0 < precision < 1
    assert 0 < recall < 1
    assert precision != recall


def test_precision_and_recall_trade_places() -> None:
    a, b = features(60), features(50, seed=1) * 0.5
    assert precision_recall(a, b) == precision_recall(b, a)[::-1]


def test_a_set_covers_itself() -> None:
    x = features(50)
    assert precision_recall(x, x) == (1, 1)
    assert precision_recall(x, x.flip(0)) == (1, 1)


@pytest.mark.parametrize("block", [3, 7, 1024])
def test_copies_of_images_cover_themselves(block: int) -> None:
    # every reach is zero, and rounding must not push a copy out of it
    x = features(30, 333).repeat(5, 1)
    assert precision_recall(x, x.flip(0), block=block) == (1, 1)


def test_sets_far_apart_share_nothing() -> None:
    assert precision_recall(features(50), features(50, seed=1) + 100) == (0, 0)


def test_a_dropped_mode_costs_recall_alone() -> None:
    modes = [features(100, seed=seed) + 50 * seed for seed in range(2)]
    fresh = [features(100, seed=seed + 10) + 50 * seed for seed in range(2)]
    real = torch.cat(modes)
    precision, recall = precision_recall(real, torch.cat(fresh))
    dropped = precision_recall(real, fresh[0])
    assert dropped[0] > precision - 0.1
    assert dropped[1] == pytest.approx(recall / 2, abs=0.06)
    assert dropped[1] <= 0.5


def test_an_invented_mode_costs_precision_alone() -> None:
    real, ours = features(100), features(100, seed=1)
    precision, recall = precision_recall(real, ours)
    invented = precision_recall(real, torch.cat([ours, features(100, seed=2) + 50]))
    assert invented == (precision / 2, recall)


@pytest.mark.parametrize("block", [1, 7, 50, 64, 1000])
def test_blocks_change_nothing(block: int) -> None:
    real, ours = features(50), features(45, seed=1) * 0.8
    assert precision_recall(real, ours, block=block) == precision_recall(real, ours)


def test_no_matrix_is_larger_than_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[torch.Size] = []
    addmm = torch.addmm

    def watched(total: Tensor, x: Tensor, y: Tensor, alpha: float) -> Tensor:
        sizes.append(total.shape)
        return addmm(total, x, y, alpha=alpha)

    monkeypatch.setattr(torch, "addmm", watched)
    precision_recall(features(50), features(45, seed=1), block=8)
    assert sizes
    assert max(rows for rows, _ in sizes) == 8


@pytest.mark.parametrize(
    ("real", "ours", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(9, 2), "real has 3 features, and none has 3 neighbours; give 4 or more"),
        (torch.zeros(9, 2), torch.zeros(3, 2), "ours has 3 features"),
        (torch.zeros(9, 2), torch.zeros(9, 3), "features of size 2 and 3"),
        (torch.zeros(9), torch.zeros(9, 3), r"real has shape \(9,\)"),
        (torch.zeros(9, 2), torch.full((9, 2), math.inf), "ours has infinite or NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(real: Tensor, ours: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        precision_recall(real, ours)


@pytest.mark.parametrize("settings", [{"neighbours": 0}, {"block": 0}])
def test_settings_without_a_meaning_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="1 or more of each"):
        precision_recall(features(9), features(9), **settings)
