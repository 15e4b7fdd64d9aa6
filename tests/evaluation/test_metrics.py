"""FID, KID, precision and recall, Inception Score: closed forms, definitions, and files of statistics."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recap.evaluation import metrics
from recap.evaluation.metrics import (
    FeatureStatistics,
    fid,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_recall,
)

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]


def features(count: int, size: int, seed: int = 0) -> Tensor:
    """Correlated features with a mean away from zero."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(size, size, generator=rng, dtype=torch.float64) / math.sqrt(size)
    shift = torch.randn(size, generator=rng, dtype=torch.float64)
    return torch.randn(count, size, generator=rng, dtype=torch.float64) @ mix + shift


def standard(count: int, size: int, seed: int = 0) -> Tensor:
    """Features whose sample mean is exactly zero and whose sample covariance is exactly the identity."""
    x = features(count, size, seed)
    x = x - x.mean(dim=0)
    factor = torch.linalg.cholesky(x.T @ x / (count - 1))
    return torch.linalg.solve_triangular(factor, x.T, upper=False).T


def white(count: int, size: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def equal(a: FeatureStatistics, b: FeatureStatistics) -> bool:
    return a.count == b.count and torch.equal(a.mean, b.mean) and torch.equal(a.covariance, b.covariance)


@pytest.mark.parametrize("block", [7, 4096])
def test_statistics_are_those_of_numpy(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "BLOCK", block)
    x = features(200, 12)
    statistics = FeatureStatistics.of(x)
    assert (statistics.count, statistics.size) == (200, 12)
    np.testing.assert_allclose(statistics.mean.numpy(), x.numpy().mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(statistics.covariance.numpy(), np.cov(x.numpy(), rowvar=False), atol=1e-12)


def test_a_large_mean_costs_no_precision() -> None:
    statistics = FeatureStatistics.of(standard(500, 6) + 1e6)
    torch.testing.assert_close(statistics.covariance, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_in_double_precision(dtype: torch.dtype) -> None:
    x, y = features(60, 5).to(dtype), features(60, 5, seed=1).to(dtype)
    assert FeatureStatistics.of(x).covariance.dtype == torch.float64
    assert fid(x, y) == fid(x.double(), y.double())
    assert kernel_distance(x, y, subsets=2) == kernel_distance(x.double(), y.double(), subsets=2)
    assert inception_score(x) == inception_score(x.double())


@pytest.mark.parametrize("device", DEVICES)
def test_gaussians_on_common_axes_follow_the_closed_form(device: str) -> None:
    # with covariances that commute the distance is |shift|² + sum (σ₁ - σ₂)²
    size = 12
    rng = torch.Generator().manual_seed(5)
    axes = torch.linalg.qr(torch.randn(size, size, generator=rng, dtype=torch.float64))[0]
    first, second = (torch.rand(2, size, generator=rng, dtype=torch.float64) + 0.1).unbind()
    shift = torch.randn(size, generator=rng, dtype=torch.float64)
    a = standard(100, size, seed=1) * first @ axes.T
    b = standard(150, size, seed=2) * second @ axes.T + shift
    expected = (shift @ shift + ((first - second) ** 2).sum()).item()
    assert fid(a.to(device), b.to(device)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_matrix_root_agrees_with_numpy(seed: int) -> None:
    a, b = features(80, 20, seed).numpy(), features(90, 20, seed + 10).numpy()
    product = np.cov(a, rowvar=False) @ np.cov(b, rowvar=False)
    values, vectors = np.linalg.eig(product)  # of the product itself, which is not symmetric
    root = (vectors * np.sqrt(values.astype(complex))) @ np.linalg.inv(vectors)
    np.testing.assert_allclose(root @ root, product, atol=1e-9)
    expected = (
        np.sum((a.mean(axis=0) - b.mean(axis=0)) ** 2)
        + np.trace(np.cov(a, rowvar=False))
        + np.trace(np.cov(b, rowvar=False))
        - 2 * np.trace(root).real
    )
    assert fid(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, rel=1e-8)


def test_the_distance_is_symmetric_and_0_for_the_same_set() -> None:
    a, b = features(200, 32), features(150, 32, seed=1)
    assert fid(a, b) == pytest.approx(fid(b, a), rel=1e-10)
    assert fid(a, b) > 0
    assert fid(a, a) == pytest.approx(0, abs=1e-9)
    assert fid(a, a.flip(0)) == pytest.approx(0, abs=1e-9)


def test_constant_features_are_no_obstacle() -> None:
    x = features(100, 8)
    x[:, 3:5] = 0
    assert fid(x, x) == pytest.approx(0, abs=1e-6)
    assert fid(x, x + 1) == pytest.approx(8, rel=1e-6)


@pytest.mark.parametrize("name", ["statistics.npz", "statistics"])
def test_a_file_repeats_the_statistics(tmp_path: Path, name: str) -> None:
    saved = FeatureStatistics.of(features(120, 9))
    saved.save(tmp_path / name)
    assert equal(FeatureStatistics.load(tmp_path / name), saved)
    with np.load(tmp_path / name) as arrays:
        assert sorted(arrays) == ["mu", "n", "sigma"]
        assert arrays["mu"].dtype == arrays["sigma"].dtype == np.float64


def test_files_of_other_codes_are_read(tmp_path: Path) -> None:
    x, other = features(120, 9), features(80, 9, seed=1)
    mu, sigma = x.numpy().mean(axis=0), np.cov(x.numpy(), rowvar=False)
    np.savez(tmp_path / "plain.npz", mu=mu, sigma=sigma, extra=np.ones(2))
    plain = FeatureStatistics.load(tmp_path / "plain.npz")
    assert plain.count is None
    assert frechet_distance(FeatureStatistics.of(other), plain) == pytest.approx(fid(other, x), rel=1e-10)
    plain.save(tmp_path / "again.npz")
    assert equal(FeatureStatistics.load(tmp_path / "again.npz"), plain)


def test_compact_statistics_are_close_and_small(tmp_path: Path) -> None:
    exact = FeatureStatistics.of(features(500, 64))
    exact.save(tmp_path / "exact.npz")
    exact.save(tmp_path / "compact.npz", compact=True)
    compact = FeatureStatistics.load(tmp_path / "compact.npz")
    assert compact.count == 500
    assert torch.allclose(compact.mean, exact.mean, atol=1e-6)
    assert frechet_distance(compact, exact) < 1e-3 * float(exact.covariance.trace())
    assert (tmp_path / "compact.npz").stat().st_size < 0.35 * (tmp_path / "exact.npz").stat().st_size
    with np.load(tmp_path / "compact.npz") as arrays:
        cut = {key: arrays[key] for key in arrays.files} | {"low": arrays["low"][:-1], "high": arrays["high"][:-1]}
    np.savez(tmp_path / "cut.npz", **cut)
    with pytest.raises(ValueError, match="correlations for 64 features"):
        FeatureStatistics.load(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mu": np.zeros(3)}, r"keys \['mu'\] but mu and sigma are expected"),
        ({"mu": np.zeros(3), "sigma": np.eye(4)}, r"sigma of shape \(4, 4\)"),
        ({"mu": np.zeros((1, 3)), "sigma": np.eye(3)}, r"mu of shape \(1, 3\)"),
        ({"mu": np.zeros(3), "sigma": np.eye(3), "n": np.array(1)}, r"n = 1 but"),
    ],
)
def test_files_that_hold_something_else_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "wrong.npz"
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    with pytest.raises(ValueError, match=message):
        FeatureStatistics.load(path)


@pytest.mark.parametrize("count", [8, 10])
def test_too_few_features_are_warned_of(count: int) -> None:
    enough, few = features(11, 10), features(count, 10, seed=1)
    with pytest.warns(UserWarning, match=f"{count} features of size 10 give a singular covariance"):
        fid(enough, few)
    with pytest.warns(UserWarning, match="50,000"):
        fid(few, enough)
    fid(enough, features(11, 10, seed=1))  # these are enough, and a warning would be an error


def test_a_matrix_that_is_no_covariance_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", mu=np.zeros(3), sigma=np.diag([1.0, 1.0, -0.5]))
    wrong = FeatureStatistics.load(tmp_path / "wrong.npz")
    with pytest.raises(ValueError, match=r"eigenvalue -0\.5"):
        frechet_distance(wrong, FeatureStatistics.of(features(20, 3)))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(5), r"\(5,\) of torch.float32; expected \(n, F\)"),
        (torch.zeros(5, 2, 2), r"expected \(n, F\)"),
        (torch.zeros(5, 0), r"expected \(n, F\)"),
        (torch.zeros(5, 3, dtype=torch.int64), "of floats"),
        (torch.zeros(0, 3), "0 images; give"),
        (torch.tensor([[1.0, 2.0, math.nan]] * 5), "infinite or NaN"),
        (torch.tensor([[1.0, 2.0, math.inf]] * 5), "infinite or NaN"),
    ],
)
def test_what_is_no_matrix_of_features_is_refused(x: Tensor, message: str) -> None:
    good = white(9, 3)
    for call in (
        lambda: FeatureStatistics.of(x),
        lambda: kernel_distance(good, x),
        lambda: kernel_distance(x, good),
        lambda: precision_recall(x, good),
        lambda: precision_recall(good, x),
        lambda: inception_score(x),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_too_few_features_and_other_sizes_are_refused() -> None:
    few, some, other = white(1, 3), white(3, 3), white(9, 4)
    for call, message in (
        (lambda: FeatureStatistics.of(few), "1 images; give 2"),
        (lambda: kernel_distance(few, some), "1 images; give 2"),
        (lambda: precision_recall(some, white(9, 3)), "real are those of 3 images; give 4"),
        (lambda: precision_recall(white(9, 3), some), "ours are those of 3 images; give 4"),
        (lambda: fid(white(20, 3), white(20, 4)), "features of size 3 and 4"),
        (lambda: kernel_distance(some, other), "features of size 3 and 4"),
        (lambda: precision_recall(white(9, 3), other), "features of size 3 and 4"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def mmd(x: Tensor, y: Tensor) -> float:
    """The kernel distance by its definition, one pair at a time."""

    def kernel(u: Tensor, v: Tensor) -> float:
        return (float(u @ v) / len(u) + 1) ** 3

    n, m = len(x), len(y)
    first = sum(kernel(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    second = sum(kernel(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    return first + second - 2 * sum(kernel(u, v) for u in x for v in y) / (n * m)


@pytest.mark.parametrize("size", [12, 1000])
def test_kid_of_whole_sets_follows_the_definition(size: int) -> None:
    x, y = white(12, 5), white(12, 5, seed=1) + 0.5
    mean, deviation = kernel_distance(x, y, subsets=3, size=size)
    assert mean == pytest.approx(mmd(x, y), rel=1e-12)
    assert deviation == pytest.approx(0, abs=1e-12)
    assert kernel_distance(x, torch.cat([y, y]), subsets=4, size=size)[1] > 0  # the larger one is drawn from


def test_kid_of_halves_of_one_set_is_zero_on_average() -> None:
    x = white(4000, 16)
    mean, deviation = kernel_distance(x[:2000], x[2000:], subsets=200, size=50)
    assert abs(mean) < 4 * deviation / math.sqrt(200)  # about 0.014, where the biased estimate is 0.31
    assert deviation > 0


def test_kid_depends_on_its_seed_and_no_other_one() -> None:
    x, y = white(60, 4), white(60, 4, seed=1)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = kernel_distance(x, y, subsets=3, size=10, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)
    assert kernel_distance(x, y, subsets=3, size=10, seed=1) == first
    assert kernel_distance(x, y, subsets=3, size=10, seed=2) != first


def near(points: Tensor, others: Tensor, neighbours: int) -> float:
    """The share of points within reach of one of the others, one pair at a time."""
    reach = [
        sorted(float((u - v).norm()) for j, v in enumerate(others) if j != i)[neighbours - 1]
        for i, u in enumerate(others)
    ]
    found = [any(float((p - v).norm()) <= r for v, r in zip(others, reach, strict=True)) for p in points]
    return sum(found) / len(found)


@pytest.mark.parametrize("neighbours", [1, 3, 5])
def test_precision_and_recall_follow_the_definition(neighbours: int) -> None:
    real, ours = white(40), white(31, seed=1) * 1.5 + 0.4
    precision, recall = precision_recall(real, ours, neighbours=neighbours, block=7)
    assert precision == near(ours, real, neighbours)
    assert recall == near(real, ours, neighbours)
    assert 0 < precision < 1
    assert 0 < recall < 1
    assert precision_recall(ours, real, neighbours=neighbours) == (recall, precision)


@pytest.mark.parametrize("block", [3, 7, 1024])
def test_copies_of_images_cover_themselves(block: int) -> None:
    # every reach is zero, and rounding must not push a copy out of it
    x = white(30, 333).repeat(5, 1)
    assert precision_recall(x, x.flip(0), block=block) == (1, 1)


def test_lost_and_invented_modes_cost_recall_and_precision() -> None:
    assert precision_recall(white(50), white(50, seed=1) + 100) == (0, 0)
    real, ours = white(100), white(100, seed=1)
    precision, recall = precision_recall(real, ours)
    assert precision_recall(real, torch.cat([ours, white(100, seed=2) + 50])) == (precision / 2, recall)
    both = torch.cat([real, white(100, seed=3) + 50])
    assert precision_recall(both, ours) == (precision, recall / 2)


def test_blocks_change_nothing_and_bound_the_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    real, ours = white(50), white(45, seed=1) * 0.8
    whole = precision_recall(real, ours)
    sizes: list[int] = []
    addmm = torch.addmm

    def watched(total: Tensor, x: Tensor, y: Tensor, alpha: float) -> Tensor:
        sizes.append(len(total))
        return addmm(total, x, y, alpha=alpha)

    monkeypatch.setattr(torch, "addmm", watched)
    for block in (1, 7, 50, 64):
        sizes.clear()
        assert precision_recall(real, ours, block=block) == whole
        assert max(sizes) == min(block, 50)


def scored(x: Tensor, splits: int) -> tuple[float, float]:
    """The Inception Score by its definition, with all probabilities of a split at once."""
    scores = []
    for split in range(splits):
        p = x[split::splits].double().softmax(dim=1)
        scores.append(math.exp((p * (p / p.mean(dim=0)).log()).sum(dim=1).mean()))
    mean = sum(scores) / splits
    return mean, math.sqrt(sum((score - mean) ** 2 for score in scores) / splits)


@pytest.mark.parametrize("splits", [1, 3, 10])
def test_the_inception_score_follows_the_definition(splits: int) -> None:
    x = 3 * white(103, 11)
    assert inception_score(x, splits) == pytest.approx(scored(x, splits), rel=1e-12, abs=1e-12)


def test_the_inception_score_counts_classes() -> None:
    assert inception_score(torch.zeros(50, 11)) == pytest.approx((1, 0), abs=1e-12)  # knowing nothing
    assert inception_score(white(1, 11).repeat(50, 1)) == pytest.approx((1, 0), abs=1e-12)  # one class alone
    each = torch.arange(110) // 10 % 11  # each split sees each class once
    assert inception_score(1e4 * torch.eye(11)[each]) == pytest.approx((11, 0), abs=1e-10)
    assert inception_score(1e4 * torch.eye(4)[[0, 0, 1, 0]], 2) == pytest.approx((1.5, 0.5), abs=1e-12)
    assert inception_score(1e4 * torch.eye(3)) == pytest.approx((1, 0), abs=1e-12)  # three splits of one image
