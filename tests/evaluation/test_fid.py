"""The Fréchet distance: closed forms, an independent matrix root, and statistics that do not depend on shards."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from recap.evaluation import FeatureStatistics, fid, frechet_distance

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


def pieces(x: Tensor, size: int) -> list[Tensor]:
    return [x[start : start + size] for start in range(0, len(x), size)]


def gathered(batches: list[Tensor]) -> FeatureStatistics:
    statistics = FeatureStatistics()
    for batch in batches:
        statistics.update(batch)
    return statistics


def check_equal(a: FeatureStatistics, b: FeatureStatistics, tolerance: float = 1e-10) -> None:
    assert a.count == b.count
    torch.testing.assert_close(a.mean, b.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.covariance, b.covariance, rtol=tolerance, atol=tolerance)


def test_statistics_are_those_of_numpy() -> None:
    x = features(200, 12)
    statistics = gathered(pieces(x, 7))
    assert statistics.count == 200
    assert statistics.size == 12
    np.testing.assert_allclose(statistics.mean.numpy(), x.numpy().mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(statistics.covariance.numpy(), np.cov(x.numpy(), rowvar=False), atol=1e-12)


def test_a_large_mean_costs_no_precision() -> None:
    x = standard(500, 6)
    statistics = gathered(pieces(x + 1e6, 50))
    torch.testing.assert_close(statistics.covariance, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_merge_to_the_whole(shards: int) -> None:
    x = features(101, 16)
    merged = FeatureStatistics()
    for shard in x.chunk(shards):
        merged.merge(gathered(pieces(shard, 9)))
    check_equal(merged, FeatureStatistics.of(x))
    other = FeatureStatistics.of(features(101, 16, seed=1))
    assert frechet_distance(merged, other) == pytest.approx(
        frechet_distance(FeatureStatistics.of(x), other), abs=1e-10
    )


def test_order_does_not_matter() -> None:
    x = features(90, 8)
    shuffled = x[torch.randperm(90, generator=torch.Generator().manual_seed(1))]
    check_equal(gathered(pieces(x, 11)), gathered(pieces(shuffled, 20)))
    check_equal(gathered(pieces(x, 11)), gathered(pieces(x, 11)[::-1]))
    check_equal(gathered(pieces(x, 1)), FeatureStatistics.of(x))


def test_empty_parts_change_nothing() -> None:
    x = features(40, 4)
    statistics = gathered([x[:0], x, x[:0]])
    statistics.merge(FeatureStatistics())
    check_equal(statistics, FeatureStatistics.of(x), tolerance=0)


def test_merging_leaves_the_other_alone() -> None:
    x = features(40, 4)
    whole, part = FeatureStatistics(), FeatureStatistics.of(x[:20])
    whole.merge(part)
    whole.update(x[20:])
    check_equal(part, FeatureStatistics.of(x[:20]), tolerance=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_in_double_precision(dtype: torch.dtype) -> None:
    x = features(60, 5).to(dtype)
    statistics = FeatureStatistics.of(x)
    assert statistics.mean.dtype == statistics.covariance.dtype == torch.float64
    check_equal(statistics, FeatureStatistics.of(x.double()), tolerance=0)


def test_the_same_set_is_at_no_distance() -> None:
    x = features(400, 64)
    assert fid(x, x) == pytest.approx(0, abs=1e-9)
    assert fid(x, x[torch.randperm(400, generator=torch.Generator().manual_seed(0))]) == pytest.approx(0, abs=1e-9)


def test_a_shift_counts_squared() -> None:
    x, shift = features(300, 10), torch.linspace(-1, 2, 10, dtype=torch.float64)
    assert fid(x, x + shift) == pytest.approx((shift @ shift).item(), rel=1e-9)


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


def test_one_feature_follows_the_closed_form() -> None:
    x = standard(50, 1)
    assert fid(2 * x + 1, 5 * x - 3) == pytest.approx((1 + 3) ** 2 + (2 - 5) ** 2, rel=1e-12)


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


def test_the_distance_is_symmetric() -> None:
    a, b = features(200, 32), features(150, 32, seed=1)
    assert fid(a, b) == pytest.approx(fid(b, a), rel=1e-10)
    assert fid(a, b) > 0


def test_a_rotation_of_both_changes_nothing() -> None:
    a, b = features(200, 16), features(150, 16, seed=1)
    turn = torch.linalg.qr(features(16, 16, seed=2))[0]
    assert fid(a @ turn, b @ turn) == pytest.approx(fid(a, b), rel=1e-9)


def test_constant_features_are_no_obstacle() -> None:
    x = features(100, 8)
    x[:, 3:5] = 0
    assert fid(x, x) == pytest.approx(0, abs=1e-6)
    assert fid(x, x + 1) == pytest.approx(8, rel=1e-6)


@pytest.mark.parametrize("name", ["statistics.npz", "statistics"])
def test_a_file_repeats_the_statistics(tmp_path: Path, name: str) -> None:
    x = features(120, 9)
    saved = FeatureStatistics.of(x[:70])
    saved.save(tmp_path / name)
    loaded = FeatureStatistics.load(tmp_path / name)
    check_equal(loaded, saved, tolerance=1e-14)
    loaded.update(x[70:])
    check_equal(loaded, FeatureStatistics.of(x))
    with np.load(tmp_path / name) as arrays:
        assert sorted(arrays) == ["mu", "n", "sigma"]
        assert arrays["mu"].dtype == arrays["sigma"].dtype == np.float64


def test_files_of_other_codes_are_read(tmp_path: Path) -> None:
    x = features(120, 9)
    np.savez(
        tmp_path / "plain.npz", mu=x.numpy().mean(axis=0), sigma=np.cov(x.numpy(), rowvar=False), extra=np.ones(2)
    )
    plain = FeatureStatistics.load(tmp_path / "plain.npz")
    assert plain.count is None
    other = features(80, 9, seed=1)
    assert frechet_distance(FeatureStatistics.of(other), plain) == pytest.approx(fid(other, x), rel=1e-10)
    with pytest.raises(ValueError, match="cannot grow"):
        plain.update(x)
    with pytest.raises(ValueError, match="cannot be merged"):
        FeatureStatistics().merge(plain)
    plain.save(tmp_path / "again.npz")
    check_equal(FeatureStatistics.load(tmp_path / "again.npz"), plain, tolerance=0)


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


def test_just_enough_features_are_not_warned_of() -> None:
    fid(features(11, 10), features(11, 10, seed=1))  # a warning would be an error


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_features_that_are_not_numbers_are_refused(value: float) -> None:
    x, statistics = features(5, 3), FeatureStatistics()
    x[2, 1] = value
    with pytest.raises(ValueError, match="infinite or NaN"):
        statistics.update(x)
    assert statistics.count == 0


@pytest.mark.parametrize("shape", [(5,), (5, 2, 2), (5, 0)])
def test_features_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"but \(n, F\) is expected"):
        FeatureStatistics().update(torch.zeros(shape))


def test_sizes_must_agree() -> None:
    a, b = FeatureStatistics.of(features(20, 3)), FeatureStatistics.of(features(20, 4))
    with pytest.raises(ValueError, match="features of size 3 and 4"):
        frechet_distance(a, b)
    with pytest.raises(ValueError, match="features of size 4 cannot join those of size 3"):
        a.merge(b)
    with pytest.raises(ValueError, match="features of size 4 cannot join those of size 3"):
        a.update(features(2, 4))


def test_too_little_for_a_moment_is_refused() -> None:
    empty, single = FeatureStatistics(), FeatureStatistics.of(features(1, 3))
    with pytest.raises(ValueError, match="no mean of 0 features"):
        _ = empty.mean
    with pytest.raises(ValueError, match="2 features or more but there are 0"):
        _ = empty.covariance
    with pytest.raises(ValueError, match="2 features or more but there are 1"):
        _ = single.covariance


def test_a_matrix_that_is_no_covariance_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", mu=np.zeros(3), sigma=np.diag([1.0, 1.0, -0.5]))
    wrong = FeatureStatistics.load(tmp_path / "wrong.npz")
    with pytest.raises(ValueError, match=r"eigenvalue -0\.5"):
        frechet_distance(wrong, FeatureStatistics.of(features(20, 3)))
