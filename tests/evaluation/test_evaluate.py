"""Features in shards: resumable, the same for any batches; references, and the figures beside them."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recap.evaluation import shards
from recap.evaluation.evaluate import SHIPPED, Reference, compare, features_of, subset
from recap.evaluation.features import Features, look
from recap.evaluation.metrics import FeatureStatistics, fid, frechet_distance, kernel_distance
from recap.evaluation.shards import FeatureFolder
from recap.pipelines.inputs import proportional_labels
from recap.runs.ranks import Ranks
from recap.runs.sample import sample_all
from recap.runs.works import Done
from tests.evaluation.watcher import Watcher
from tests.pipelines.test_pipeline import pipeline

NET: Any = Watcher()
LOGITS: Any = Watcher(has_logits=True)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def folder_at(path: Path, num: int = 9, **settings: Any) -> FeatureFolder:
    return FeatureFolder(path, num, settings, LOGITS)


def missing(folder: FeatureFolder) -> tuple[list[int], list[str]]:
    """The images that a folder lacks, and what it says of damage."""
    with redirect_stdout(io.StringIO()) as said:
        found = folder.prepare()
    folder.release()
    return found, said.getvalue().splitlines()


def run(folder: FeatureFolder, batch: int, family: str = "maskgit") -> Features:
    """Nine images of a small model, three classes in turn."""
    pipe = pipeline(family)
    pipe.batch_size = batch
    labels = [i % 3 for i in range(9)] if pipe.model.classes else None
    sample_all(pipe, pipe.works(labels, 9, "3+1", seed=5), folder, Ranks())
    return folder.read()


def equal(one: Features, other: Features) -> bool:
    assert one.logits is not None
    assert other.logits is not None
    return torch.equal(one.features, other.features) and torch.equal(one.logits, other.logits)


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_batches_change_nothing(family: str, tmp_path: Path) -> None:
    found = [run(folder_at(tmp_path / f"{batch}"), batch, family) for batch in (9, 4, 1)]
    assert all(equal(other, found[0]) for other in found[1:])
    pipe = pipeline(family)
    labels = [i % 3 for i in range(9)] if pipe.model.classes else None
    drawn = pipe(labels, num_images=9, schedule="3+1", seed=5, output_type="pt").images
    assert equal(look(LOGITS, drawn), found[0])  # image i is the pipeline's image i


def test_what_is_there_is_not_generated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(folder_at(tmp_path / "whole"), 9)
    folder, looked = folder_at(tmp_path / "out"), list[int]()

    def stopped(net: Any, pictures: Tensor) -> Features:
        looked.append(len(pictures))
        if len(looked) == 3:
            raise KeyboardInterrupt
        return look(net, pictures)

    monkeypatch.setattr(shards, "look", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(folder, 2)
    assert folder.kept() == 4
    assert missing(folder) == ([4, 5, 6, 7, 8], [])
    assert equal(run(folder, 3), whole)
    assert sum(looked) == 2 + 9  # two were lost
    assert equal(run(folder, 3), whole)
    assert sum(looked) == 2 + 9


@pytest.mark.parametrize("damage", ["bit", "half", "none", "text", "numbers", "shape"])
def test_a_damaged_shard_is_generated_again(damage: str, tmp_path: Path) -> None:
    folder = folder_at(tmp_path, model="m")
    whole = run(folder, 3)
    path = tmp_path / "000003.npz"
    content = bytearray(path.read_bytes())
    with np.load(path) as file:
        arrays = dict(file)
    lost = arrays["numbers"].tolist()
    if damage == "bit":
        content[content.index(arrays["features"].tobytes()) + 5] ^= 1
    path.write_bytes({"half": bytes(content[:200]), "none": b"", "text": b"no npz"}.get(damage, bytes(content)))
    if damage == "numbers":
        np.savez(path, **arrays | {"numbers": np.arange(9, 9 + len(lost))})
    if damage == "shape":
        np.savez(path, **arrays | {"features": arrays["features"][:0]})
    found, said = missing(folder)
    assert found == lost
    assert "000003.npz is damaged" in said[0]
    assert not path.exists()
    assert equal(run(folder, 2), whole)


def test_shards_are_read_in_the_order_of_the_images(tmp_path: Path) -> None:
    works = pipeline("mage").works(None, 10, "2", seed=0)
    done = [Done(work, torch.zeros(16), pixels) for work, pixels in zip(works, images(10), strict=True)]
    folder = folder_at(tmp_path, 10)
    assert missing(folder) == (list(range(10)), [])
    for numbers in ([7, 2], [0, 9, 4], [1, 3, 5, 6], [8, 9]):  # one of them twice
        folder.write([done[number] for number in numbers])
    assert equal(folder.read(), look(LOGITS, images(10)))
    with pytest.raises(OSError, match="10 of 12 images"):
        folder_at(tmp_path, 12).read()
    (tmp_path / ".000008.npz.1234").write_bytes(b"half a file")  # of a process that was killed
    assert missing(folder) == ([], [])
    assert {path.name for path in tmp_path.glob("*.npz*")} == {f"{number:06d}.npz" for number in (0, 1, 2, 8)}


def test_a_full_disk_leaves_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    folder = folder_at(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        run(folder, 4)
    assert {path.name for path in tmp_path.glob("*.npz*")} == {"000000.npz"}
    assert len(run(folder, 4)) == 9


def test_figures_are_those_of_the_features() -> None:
    seen, theirs = look(LOGITS, images(64)), look(NET, images(50, 1)).features
    reference = Reference(FeatureStatistics.of(theirs), theirs)
    figures = compare(seen, reference)
    assert list(figures) == ["fid", "kid", "kid_std", "precision", "recall", "inception_score", "inception_score_std"]
    assert figures["fid"] == pytest.approx(fid(seen.features, theirs), rel=1e-6)
    assert figures["kid"] == pytest.approx(kernel_distance(seen.features, theirs)[0], rel=1e-5)
    assert set(compare(look(NET, images(64)), Reference(reference.statistics))) == {"fid"}


def test_a_subset_is_always_the_same() -> None:
    x = torch.arange(50.0).view(50, 1)
    assert subset(x, 50) is x
    some = subset(x, 20)
    assert torch.equal(some, subset(x.clone(), 20))
    assert torch.equal(some, torch.unique(some).view(20, 1))  # in order, and each once
    assert some.max() > 20  # not the first ones


def test_references_come_from_files_images_and_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, picture in enumerate((images(12) * 255).byte()):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")
    from_images = Reference.load(folder, NET, progress=False)
    assert from_images.statistics.count == 12
    assert from_images.features is not None
    assert from_images.features.shape == (12, 6)
    replace(from_images.statistics, classes=(5, 7)).save(tmp_path / "stats.npz")
    from_file = Reference.load(tmp_path / "stats.npz", NET)
    assert (from_file.features, from_file.statistics.classes) == (None, (5, 7))
    assert frechet_distance(from_file.statistics, from_images.statistics) == pytest.approx(0, abs=1e-9)
    packed = np.stack([np.asarray(Image.open(file)) for file in sorted(folder.iterdir())])
    np.savez(tmp_path / "photos.npz", images=packed)
    assert torch.equal(features_of(tmp_path / "photos.npz", NET, progress=False).features, from_images.features)
    with pytest.raises(FileNotFoundError, match="flowers128"):
        Reference.load(tmp_path / "nothing", NET)
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ValueError, match="cannot be read as npz"):
        Reference.load(tmp_path / "bad.npz", NET)


def test_shipped_statistics_are_those_of_the_flowers() -> None:
    shipped = FeatureStatistics.load(SHIPPED / "flowers128.npz")
    assert (shipped.size, shipped.count) == (2048, 8189)
    classes = shipped.classes or ()
    assert (len(classes), sum(classes)) == (102, 8189)
    with pytest.raises(ValueError, match="flowers128 has statistics of 2048 features but the network gives 6"):
        Reference.load("flowers128", NET)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 3_000_000


def test_labels_depend_on_the_index_alone() -> None:
    counts = [10, 0, 30, 60]
    for number in (200, 1000):  # any beginning of the run has the shares already
        shown = np.bincount(proportional_labels(number, counts), minlength=4) / number
        assert np.abs(shown - np.array(counts) / 100).max() < 0.02
    assert proportional_labels(1000, counts)[:200] == proportional_labels(200, counts)
    for wrong in ([1, -1, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(ValueError, match="4 classes"):
            proportional_labels(9, wrong)
