"""One pass over images: shards, states, references and label plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recap.evaluation.fid import FeatureStatistics, frechet_distance
from recap.evaluation.measure import (
    SHIPPED,
    Measurement,
    Reference,
    compare,
    label_plan,
    measure_images,
)
from recap.files import written_whole
from tests.evaluation.watcher import Watcher

NET: Any = Watcher()
LOGITS: Any = Watcher(has_logits=True)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def seen(pictures: Tensor, net: Any = NET, parts: int = 1, keep: int = 20) -> Measurement:
    """All pictures, in shards of unequal size that are merged."""
    shards = []
    for part in range(parts):
        shard = Measurement(logits=net.has_logits, keep=keep)
        numbers = range(part, len(pictures), parts)
        for first in range(0, len(numbers), 7):
            some = numbers[first : first + 7]
            shard.add(net, pictures[list(some)], some)
        shards.append(shard)
    whole = shards[0]
    for shard in shards[1:]:
        whole.merge(shard)
    return whole


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_shards_change_nothing(parts: int) -> None:
    pictures = images(64)
    reference = Reference("x", FeatureStatistics.of(NET(images(50, 1))), NET(images(50, 1)))
    once, sharded = (compare(seen(pictures, LOGITS, n), reference) for n in (1, parts))
    assert set(once) == {
        "fid", "kid", "kid_std", "precision", "recall", "inception_score", "inception_score_std"
    }  # fmt: skip
    assert sharded == pytest.approx(once, rel=1e-5)  # float32 features of other batches


def test_a_state_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    pictures = images(40)
    whole = seen(pictures, LOGITS)
    half = Measurement(logits=True, keep=20)
    for first in range(0, 40, 7):
        if first == 21:
            with written_whole(tmp_path / "state.pt") as file:
                torch.save({"seen": half.state()}, file)
            content = torch.load(tmp_path / "state.pt", weights_only=True)
            half = Measurement.from_state(content["seen"])
        some = range(first, min(first + 7, 40))
        half.add(LOGITS, pictures[list(some)], some)
    for key, value in whole.state().items():
        assert torch.equal(value, half.state()[key]), key
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]


def test_figures_need_what_they_need() -> None:
    ours = seen(images(40))
    statistics = FeatureStatistics.of(NET(images(50, 1)))
    assert set(compare(ours, Reference("x", statistics))) == {"fid"}  # no features, no logits: no other figure
    other = FeatureStatistics.of(torch.rand(20, 5))
    with pytest.raises(ValueError, match=r"5 features but the network gives 6"):
        compare(ours, Reference("x", other))
    with pytest.raises(ValueError, match="logits"):
        ours.merge(seen(images(10), LOGITS))


def test_real_against_real_is_small_and_blurred_is_not() -> None:
    pictures = images(400)
    half, rest = FeatureStatistics.of(NET(pictures[:200])), FeatureStatistics.of(NET(pictures[200:]))
    blurred = torch.nn.functional.avg_pool2d(pictures[200:], 5, 1, 2, count_include_pad=False)
    same, other = frechet_distance(half, rest), frechet_distance(half, FeatureStatistics.of(NET(blurred)))
    assert 0 <= same < 0.1 * other


def test_references_come_from_files_images_and_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, picture in enumerate((images(12) * 255).byte()):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")
    from_images = Reference.load(folder, NET, progress=False)
    assert from_images.statistics.count == 12
    assert from_images.features is not None
    assert from_images.features.shape == (12, 6)
    from_images.statistics.save(tmp_path / "stats.npz")
    from_file = Reference.load(tmp_path / "stats.npz", NET)
    assert from_file.features is None
    assert frechet_distance(from_file.statistics, from_images.statistics) == pytest.approx(0, abs=1e-9)
    packed = np.stack([np.asarray(Image.open(file)) for file in sorted(folder.iterdir())])
    np.savez(tmp_path / "photos.npz", images=packed)
    from_npz = measure_images(tmp_path / "photos.npz", NET, progress=False)
    assert torch.equal(from_npz.statistics.mean, from_images.statistics.mean)
    shipped = Reference.load("flowers128", NET)
    assert (shipped.statistics.size, shipped.statistics.count) == (2048, 8189)
    assert shipped.classes is not None
    assert (len(shipped.classes), sum(shipped.classes)) == (102, 8189)
    with pytest.raises(FileNotFoundError, match="flowers128"):
        Reference.load(tmp_path / "nothing", NET)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ValueError, match="cannot be read as npz"):
        Reference.load(tmp_path / "bad.npz", NET)


def test_compact_statistics_are_close_and_small(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(64, 64, generator=generator) * torch.logspace(0, -2, 64)
    features = torch.randn(500, 64, generator=generator) @ mix + 3
    exact = FeatureStatistics.of(features)
    exact.save(tmp_path / "exact.npz")
    exact.save(tmp_path / "compact.npz", compact=True, classes=np.arange(3))
    compact = FeatureStatistics.load(tmp_path / "compact.npz")
    assert compact.count == 500
    assert torch.allclose(compact.mean, exact.mean, atol=1e-6)
    total = float(exact.covariance.trace())
    assert frechet_distance(compact, exact) < 1e-3 * total
    assert (tmp_path / "compact.npz").stat().st_size < 0.35 * (tmp_path / "exact.npz").stat().st_size
    with np.load(tmp_path / "compact.npz") as arrays:
        cut = {key: arrays[key] for key in arrays.files} | {"low": arrays["low"][:-1], "high": arrays["high"][:-1]}
    np.savez(tmp_path / "cut.npz", **cut)
    with pytest.raises(ValueError, match="correlations for 64 features"):
        FeatureStatistics.load(tmp_path / "cut.npz")


def test_shipped_statistics_fit_into_the_package() -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 3_000_000


def test_labels_hang_on_the_index_alone() -> None:
    even = label_plan(5)
    assert [even(i) for i in range(7)] == [0, 1, 2, 3, 4, 0, 1]
    counts = [10, 0, 30, 60]
    plan = label_plan(4, counts)
    for number in (200, 1000):  # any beginning of the run has the shares already
        shown = np.bincount([plan(i) for i in range(number)], minlength=4) / number
        assert np.abs(shown - np.array(counts) / 100).max() < 0.02
    for wrong in ([1, 2], [1, -1, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(ValueError, match="4 classes"):
            label_plan(4, wrong)
