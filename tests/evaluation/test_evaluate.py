"""Features in shards: resumable, the same for any batches; references, and the figures beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recap.evaluation import FeatureStatistics, fid, frechet_distance, kernel_distance
from recap.evaluation import evaluate as module
from recap.evaluation.evaluate import SHIPPED, Reference, compare, evaluate, features_of, subset
from recap.evaluation.features import look
from recap.evaluation.shards import FeatureFolder, Features
from recap.pipelines.labels import LabelPlan
from tests.evaluation.watcher import Watcher
from tests.pipelines.test_pipeline import pipeline

NET: Any = Watcher()
LOGITS: Any = Watcher(has_logits=True)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def seen(pictures: Tensor, net: Any = NET) -> Features:
    return Features(*look(net, pictures))


def silent(text: str) -> None:
    raise AssertionError(text)


def run(folder: FeatureFolder, batch: int, family: str = "maskgit") -> Features:
    """Nine images of a small model, three classes in turn."""
    pipe = pipeline(family)
    pipe.batch_size = batch
    labels = [i % 3 for i in range(9)] if pipe.model.classes else None
    found = evaluate(pipe, LOGITS, pipe.works(labels, 9, "3+1", seed=5), folder, progress=False)
    assert found is not None
    return found


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_batches_change_nothing(family: str, tmp_path: Path) -> None:
    found = [run(FeatureFolder(tmp_path / f"{batch}", 9, {}), batch, family) for batch in (9, 4, 1)]
    for other in found[1:]:
        assert torch.equal(other.features, found[0].features)
        assert other.logits is not None
        assert found[0].logits is not None
        assert torch.equal(other.logits, found[0].logits)
    pipe = pipeline(family)
    labels = [i % 3 for i in range(9)] if pipe.model.classes else None
    drawn = pipe(labels, num_images=9, schedule="3+1", seed=5, output_type="pt").images
    assert torch.equal(look(NET, drawn)[0], found[0].features)  # image i is the pipeline's image i


def test_what_is_there_is_not_generated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(FeatureFolder(tmp_path / "whole", 9, {}), 9)
    folder, looked = FeatureFolder(tmp_path / "out", 9, {}), []

    def stopped(net: Any, pictures: Tensor) -> Any:
        looked.append(len(pictures))
        if len(looked) == 3:
            raise KeyboardInterrupt
        return look(net, pictures)

    monkeypatch.setattr(module, "look", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(folder, 2)
    assert folder.kept() == 4
    assert folder.prepare(silent) == [4, 5, 6, 7, 8]
    looked[:] = [0] * 3
    assert torch.equal(run(folder, 3).features, whole.features)
    assert looked[3:] == [3, 2]
    assert torch.equal(run(folder, 3).features, whole.features)
    assert looked[3:] == [3, 2]


@pytest.mark.parametrize("damage", ["bit", "half", "none", "text", "numbers", "shape"])
def test_a_damaged_shard_is_generated_again(damage: str, tmp_path: Path) -> None:
    folder = FeatureFolder(tmp_path, 9, {"model": "m"})
    whole = run(folder, 3)
    path = tmp_path / "000003.npz"
    content = bytearray(path.read_bytes())
    with np.load(path) as file:
        arrays = dict(file)
    if damage == "bit":
        content[content.index(arrays["features"].tobytes()) + 5] ^= 1
    path.write_bytes({"half": content[:200], "none": b"", "text": b"no npz"}.get(damage, content))
    if damage == "numbers":
        np.savez(path, **arrays | {"numbers": np.array([7, 8, 9])})
    if damage == "shape":
        np.savez(path, **arrays | {"features": arrays["features"][:2]})
    said: list[str] = []
    assert folder.prepare(said.append) == [3, 4, 5]
    assert "000003.npz is damaged" in said[0]
    assert not path.exists()
    assert torch.equal(run(folder, 2).features, whole.features)


def test_shards_are_read_in_the_order_of_the_images(tmp_path: Path) -> None:
    rows = seen(images(10), LOGITS)
    assert rows.logits is not None
    folder = FeatureFolder(tmp_path, 10, {"seed": 0})
    assert folder.prepare(silent) == list(range(10))
    for numbers in ([7, 2], [0, 9, 4], [1, 3, 5, 6], [8, 9]):  # one of them twice
        folder.write(numbers, Features(rows.features[numbers], rows.logits[numbers]))
    found = folder.read()
    assert torch.equal(found.features, rows.features)
    assert found.logits is not None
    assert torch.equal(found.logits, rows.logits)
    with pytest.raises(OSError, match="10 of 12 images"):
        FeatureFolder(tmp_path, 12, {}).read()
    (tmp_path / ".000008.npz.1234").write_bytes(b"half a file")  # of a process that was killed
    assert folder.prepare(silent) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        *("000000.npz", "000001.npz", "000002.npz", "000008.npz", "run.json")
    }


def test_a_folder_takes_the_features_of_one_run(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, 9, {"model": "a", "seed": 0, "steps": (1, 2)}).prepare(silent)
    FeatureFolder(tmp_path, 9, {"model": "a", "seed": 0, "steps": [1, 2]}).prepare(silent)
    with pytest.raises(ValueError, match=r"another run, with other model \('a' there, 'b' here\), seed"):
        FeatureFolder(tmp_path, 9, {"model": "b", "seed": 1, "steps": (1, 2)}).prepare(silent)
    for text in ("half a fi", "[]"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match="start anew"):
            FeatureFolder(tmp_path, 9, {}).prepare(silent)


def test_a_full_disk_leaves_whole_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    folder = FeatureFolder(tmp_path, 9, {})
    with pytest.raises(OSError, match="No space left"):
        run(folder, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "000000.npz"}
    assert len(run(folder, 4)) == 9


def test_images_that_fail_are_named_and_the_others_kept(tmp_path: Path) -> None:
    pipe = pipeline("maskgit")
    decode = pipe.decode

    def broken(tokens: Tensor, output_type: str = "pil") -> Any:
        pixels = decode(tokens, output_type)
        return pixels if broken_calls.pop(0) else pixels * torch.nan

    broken_calls = [True, False, True]
    vars(pipe)["decode"] = broken
    folder = FeatureFolder(tmp_path, 3, {})
    with pytest.raises(FloatingPointError, match=r"image 1 .* of seed 0 .* 2 of 3 images"):
        evaluate(pipe, NET, pipe.works([0, 1, 2], schedule="2", seed=0), folder, progress=False)
    assert folder.prepare(silent) == [1]


def test_figures_are_those_of_the_features() -> None:
    ours, theirs = NET(images(64)), NET(images(50, 1))
    reference = Reference("x", FeatureStatistics.of(theirs), theirs)
    figures = compare(seen(images(64), LOGITS), reference)
    assert list(figures) == ["fid", "kid", "kid_std", "precision", "recall", "inception_score", "inception_score_std"]
    assert figures["fid"] == pytest.approx(fid(ours, theirs), rel=1e-6)
    assert figures["kid"] == pytest.approx(kernel_distance(ours, theirs)[0], rel=1e-5)
    assert set(compare(seen(images(64)), Reference("x", reference.statistics))) == {"fid"}  # without features, logits
    with pytest.raises(ValueError, match="5 features but the network gives 6"):
        compare(seen(images(64)), Reference("x", FeatureStatistics.of(torch.rand(20, 5))))


def test_a_subset_is_always_the_same() -> None:
    x = torch.arange(50.0).view(50, 1)
    assert subset(x, 50) is x
    some = subset(x, 20)
    assert torch.equal(some, subset(x.clone(), 20))
    assert torch.equal(some, some.unique().view(20, 1))  # in order, and each once
    assert some.max() > 20  # not the first ones


def test_real_against_real_is_small_and_blurred_is_not() -> None:
    pictures = images(400)
    blurred = torch.nn.functional.avg_pool2d(pictures[200:], 5, 1, 2, count_include_pad=False)
    same, other = (fid(NET(pictures[:200]), NET(x)) for x in (pictures[200:], blurred))
    assert 0 <= same < 0.1 * other


def test_references_come_from_files_images_and_the_package(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, picture in enumerate((images(12) * 255).byte()):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")
    from_images = Reference.load(folder, NET, batch=5, progress=False)
    assert from_images.statistics.count == 12
    assert from_images.features is not None
    assert from_images.features.shape == (12, 6)
    from_images.statistics.save(tmp_path / "stats.npz", classes=np.array([5, 7]))
    from_file = Reference.load(tmp_path / "stats.npz", NET)
    assert (from_file.features, from_file.classes) == (None, (5, 7))
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
    shipped = Reference.load("flowers128", NET)
    assert (shipped.statistics.size, shipped.statistics.count) == (2048, 8189)
    assert shipped.classes is not None
    assert (len(shipped.classes), sum(shipped.classes)) == (102, 8189)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 3_000_000


def test_labels_depend_on_the_index_alone() -> None:
    even = LabelPlan(5)
    assert [even(i) for i in range(7)] == [0, 1, 2, 3, 4, 0, 1]
    counts = [10, 0, 30, 60]
    plan = LabelPlan.of(4, counts)
    for number in (200, 1000):  # any beginning of the run has the shares already
        shown = np.bincount([plan(i) for i in range(number)], minlength=4) / number
        assert np.abs(shown - np.array(counts) / 100).max() < 0.02
    for wrong in ([1, 2], [1, -1, 1, 1], [0, 0, 0, 0]):
        with pytest.raises(ValueError, match="4 classes"):
            LabelPlan.of(4, wrong)


def test_identities_are_plain_json(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, 1, {"model": "m", "steps": (1, 2)}).prepare(silent)
    assert json.loads((tmp_path / "run.json").read_text()) == {"model": "m", "steps": [1, 2]}
