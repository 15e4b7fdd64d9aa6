"""What is kept of the images seen so far, and what it says beside a reference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from recap.evaluation.fid import FeatureStatistics, frechet_distance
from recap.evaluation.images import open_images
from recap.evaluation.inception import InceptionFeatures
from recap.evaluation.kid import kernel_distance
from recap.evaluation.precision_recall import precision_recall
from recap.evaluation.reservoir import FeatureReservoir
from recap.evaluation.score import ScoreSums
from recap.limits import array_names, read_arrays

SHIPPED = Path(__file__).parent / "statistics"  # of the data that the embedded models were trained on


class Measurement:
    """Features of any number of images: sums in float64, and a fixed number of features for what needs them.

    Which images those are hangs on their indices alone, so the result is the same for any batches and shards.
    """

    def __init__(self, *, logits: bool = False, keep: int = 10_000) -> None:
        self.statistics = FeatureStatistics()
        self.reservoir = FeatureReservoir(keep)
        self.score = ScoreSums() if logits else None

    @torch.inference_mode()
    def add(self, net: InceptionFeatures, images: Tensor, indices: Sequence[int]) -> None:
        """Look at a batch of images (B, 3, h, w) in [0, 1]; `indices` are their numbers in the whole run."""
        with exact_convolutions():
            # on the CPU one by one: there a batch of another size is rounded otherwise
            lots = torch.split(images, 1) if images.device.type == "cpu" else (images,)
            features = torch.cat([net(lot) for lot in lots])  # (B, F)
        # in float64 where there is a fast one; other accelerators have none
        self.statistics.update(features if features.is_cuda else features.cpu())
        self.reservoir.update(features.cpu(), indices)
        if self.score is not None:
            self.score.update(net.logits(features).cpu(), indices)

    def merge(self, other: Measurement) -> None:
        """Add all that another shard has seen."""
        if (self.score is None) != (other.score is None):
            raise ValueError("one shard has logits and the other has none; measure both with the same network")
        self.statistics.merge(other.statistics)
        self.reservoir.merge(other.reservoir)
        if self.score is not None and other.score is not None:
            self.score.merge(other.score)

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors, for `from_state`."""
        parts: dict[str, Mapping[str, Tensor]] = {
            "statistics": self.statistics.state(),
            "reservoir": self.reservoir.state(),
        }
        if self.score is not None:
            parts["score"] = self.score.state()
        return {f"{part}.{key}": value for part, state in parts.items() for key, value in state.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The measurement as it was when `state` was taken."""

        def part(name: str) -> dict[str, Tensor]:
            return {key.partition(".")[2]: value for key, value in state.items() if key.startswith(f"{name}.")}

        measurement = cls()
        measurement.statistics = FeatureStatistics.from_state(part("statistics"))
        measurement.reservoir = FeatureReservoir.from_state(part("reservoir"))
        measurement.score = ScoreSums.from_state(part("score")) if part("score") else None
        return measurement


def exact_convolutions() -> AbstractContextManager[None]:
    """Convolutions on CUDA in float32 and not in TF32, which moves features in the fourth digit."""
    if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return nullcontext()
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=False, allow_tf32=False
    )
    return flags


@dataclass(frozen=True, slots=True)
class Reference:
    """What images are compared with: statistics, and where there are images also some of their features."""

    name: str
    statistics: FeatureStatistics
    features: Tensor | None = None  # (n, F)
    classes: tuple[int, ...] | None = None  # how many images each class has

    @classmethod
    def load(
        cls, source: str | Path, net: InceptionFeatures, *, batch: int = 32, keep: int = 10_000, progress: bool = True
    ) -> Self:
        """Read statistics that come with the package (by name) or an npz with `mu` and `sigma`, or look at images."""
        name = str(source)
        path = Path(source)
        if not path.exists() and (SHIPPED / f"{name}.npz").is_file():
            path = SHIPPED / f"{name}.npz"
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.npz")))
            raise FileNotFoundError(
                f"{name} does not exist; give statistics (npz with mu and sigma), a folder, zip or npz of images, "
                f"or a name: {known}"
            )
        if path.suffix == ".npz" and "mu" in array_names(path):
            counts = class_counts(path)
            return cls(name, FeatureStatistics.load(path), classes=counts)
        seen = measure_images(path, net, batch=batch, keep=keep, progress=progress)
        return cls(name, seen.statistics, seen.reservoir.features)


def class_counts(path: Path) -> tuple[int, ...] | None:
    """How many images each class has, where a file of statistics says so."""
    counts = read_arrays(path, ("classes",)).get("classes")
    if counts is None:
        return None
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or not len(counts) or counts.min() < 0:
        raise ValueError(
            f"{path} has classes of shape {counts.shape} and {counts.dtype}; expected how many images there are of "
            f"each class"
        )
    return tuple(counts.tolist())


def measure_images(
    path: str | Path, net: InceptionFeatures, *, batch: int = 32, keep: int = 10_000, progress: bool = True
) -> Measurement:
    """Look at all images of a folder, zip or npz."""
    images = open_images(path)
    seen = Measurement(logits=net.has_logits, keep=keep)
    with tqdm(total=len(images), desc=f"features of {Path(path).name}", unit="image", disable=not progress) as bar:
        first = 0
        for pictures in images.batches(batch):
            seen.add(net, pictures, range(first, first + len(pictures)))
            first += len(pictures)
            bar.update(len(pictures))
    return seen


def compare(seen: Measurement, reference: Reference) -> dict[str, float]:
    """Every figure that can be had: the Fréchet distance always, others where features or logits are known."""
    if seen.statistics.size != reference.statistics.size:
        raise ValueError(
            f"{reference.name} has statistics of {reference.statistics.size} features but the network gives "
            f"{seen.statistics.size}; compute them with the same network"
        )
    figures = {"fid": frechet_distance(seen.statistics, reference.statistics)}
    if reference.features is not None:
        ours = seen.reservoir.features
        figures["kid"], figures["kid_std"] = kernel_distance(ours, reference.features)
        figures["precision"], figures["recall"] = precision_recall(reference.features, ours)
    if seen.score is not None:
        figures["inception_score"], figures["inception_score_std"] = seen.score.result()
    return figures


def label_plan(classes: int, counts: Iterable[int] | None = None) -> LabelPlan:
    """Which class image i shows, whatever the number of images: evenly, or in the proportions of `counts`."""
    if counts is None:
        return LabelPlan(classes, None)
    shares = np.asarray(list(counts), dtype=np.float64)
    if len(shares) != classes or shares.min() < 0 or shares.sum() <= 0:
        raise ValueError(f"{len(shares)} shares were given for {classes} classes; give one for each, none negative")
    return LabelPlan(classes, tuple(np.cumsum(shares) / shares.sum()))


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """Labels of the images of a run by their index."""

    classes: int
    borders: tuple[float, ...] | None

    def __call__(self, index: int) -> int:
        if self.borders is None:
            return index % self.classes
        place = ((index + 1) * 0.6180339887498949) % 1.0  # the golden ratio visits all parts of [0, 1) alike
        return min(int(np.searchsorted(self.borders, place, side="right")), self.classes - 1)
