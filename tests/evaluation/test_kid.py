"""The kernel distance: its definition, no bias, and what it does when a set moves."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from recap.evaluation import kernel_distance


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small matrices are not worth sharing, and threads that wait for each other on busy cores take far longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def features(count: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def direct(x: Tensor, y: Tensor) -> float:
    """The definition, one pair at a time."""

    def kernel(u: Tensor, v: Tensor) -> float:
        return (float(u @ v) / len(u) + 1) ** 3

    n, m = len(x), len(y)
    first = sum(kernel(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    second = sum(kernel(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return first + second - 2 * sum(kernel(u, v) for u in x for v in y) / (n * m)


def test_whole_sets_follow_the_definition() -> None:
    x, y = features(17, 5), features(17, 5, seed=1) + 0.5
    mean, deviation = kernel_distance(x, y, subsets=3, size=17)
    assert mean == pytest.approx(direct(x, y), rel=1e-12)
    assert deviation == pytest.approx(0, abs=1e-12)


def test_a_subset_is_no_larger_than_the_smaller_set() -> None:
    x, y = features(12, 4), features(12, 4, seed=1) + 0.5
    assert kernel_distance(x, y, subsets=2, size=1000)[0] == pytest.approx(direct(x, y), rel=1e-12)
    assert kernel_distance(x, torch.cat([y, y]), subsets=4, size=1000)[1] > 0  # the larger one is still drawn from


def test_mean_and_deviation_are_over_subsets() -> None:
    x, y = features(40, 4), features(30, 4, seed=1) + 0.5
    rng = torch.Generator().manual_seed(7)
    values = []
    for _ in range(5):
        first, second = (z[torch.randperm(len(z), generator=rng)[:6]] for z in (x, y))
        values.append(direct(first, second))
    mean = sum(values) / 5
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 5)
    assert kernel_distance(x, y, subsets=5, size=6, seed=7) == pytest.approx((mean, deviation), rel=1e-10)


def test_halves_of_one_set_are_at_no_distance_on_average() -> None:
    x = features(4000, 16)
    mean, deviation = kernel_distance(x[:2000], x[2000:], subsets=200, size=50)
    assert abs(mean) < 4 * deviation / math.sqrt(200)  # about 0.014, where the biased estimate is 0.31
    assert deviation > 0


def test_a_larger_shift_is_farther() -> None:
    x, y = features(300, 8), features(300, 8, seed=1)
    distances = [kernel_distance(x, y + shift, subsets=10, size=100)[0] for shift in (0.0, 0.3, 0.6, 1.2)]
    assert distances == sorted(distances)
    assert distances[1] > 10 * abs(distances[0])


def test_the_seed_decides_and_no_other_one() -> None:
    x, y = features(60, 4), features(60, 4, seed=1)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = kernel_distance(x, y, subsets=3, size=10, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    assert kernel_distance(x, y, subsets=3, size=10, seed=1) == first
    assert kernel_distance(x, y, subsets=3, size=10, seed=2) != first


def test_the_kernel_is_in_double_precision() -> None:
    x, y = features(50, 8).float() * 100, features(50, 8, seed=1).float() * 100
    assert kernel_distance(x, y, subsets=2) == kernel_distance(x.double(), y.double(), subsets=2)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (torch.zeros(1, 3), torch.zeros(5, 3), "2 features or more but there are 1"),
        (torch.zeros(5, 3), torch.zeros(0, 3), "2 features or more but there are 0"),
        (torch.zeros(5, 3), torch.zeros(5, 4), "features of size 3 and 4"),
        (torch.zeros(5), torch.zeros(5, 4), r"\(5,\) but \(n, F\)"),
        (torch.zeros(5, 3), torch.full((5, 3), math.nan), "infinite or NaN"),
    ],
)
def test_what_cannot_be_compared_is_refused(a: Tensor, b: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_distance(a, b)


@pytest.mark.parametrize("settings", [{"subsets": 0}, {"size": 1}])
def test_settings_without_a_meaning_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="take 1 or more, of size 2 or more"):
        kernel_distance(features(5, 2), features(5, 2), **settings)
