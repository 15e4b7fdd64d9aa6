"""Compare what a network sees in images with a reference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from recap.checkpoints.safe_files import array_names
from recap.evaluation.features import Features, InceptionFeatures, look
from recap.evaluation.images import open_images
from recap.evaluation.metrics import (
    FeatureStatistics,
    frechet_distance,
    inception_score,
    kernel_distance,
    precision_recall,
)
from recap.view.progress import tqdm

SHIPPED = Path(__file__).parent / "statistics"  # of the data that the embedded models were trained on
LOOKED_AT = 32  # pictures of files at a time
MAX_COMPARED = 10_000  # images of which KID, precision and recall compare the features


def features_of(path: str | Path, net: InceptionFeatures, *, progress: bool = True) -> Features:
    """The features of all images of a folder or npz."""
    images, parts = open_images(path), []
    with tqdm(total=len(images), desc=f"features of {Path(path).name}", unit="image", disable=not progress) as bar:
        for pictures in images.batches(LOOKED_AT):
            parts.append(look(net, pictures))
            bar.update(len(pictures))
    return Features.join(parts)


@dataclass(frozen=True, slots=True)
class Reference:
    """What images are compared with: statistics, and where there are images also their features."""

    statistics: FeatureStatistics
    features: Tensor | None = None  # (n, F)

    @classmethod
    def load(cls, source: str | Path, net: InceptionFeatures, *, progress: bool = True) -> Self:
        """Read statistics that come with the package (by name) or an npz with `mu` and `sigma`, or look at images."""
        name, path = str(source), Path(source)
        if not path.exists() and (SHIPPED / f"{name}.npz").is_file():
            path = SHIPPED / f"{name}.npz"
        if not path.exists():
            known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.npz")))
            raise FileNotFoundError(
                f"{name} does not exist; give statistics (npz with mu and sigma), a folder or npz of images, "
                f"or a name: {known}"
            )
        if path.suffix == ".npz" and "mu" in array_names(path):
            statistics = FeatureStatistics.load(path)
            if statistics.size != net.size:
                raise ValueError(
                    f"{name} has statistics of {statistics.size} features but the network gives {net.size}; compute "
                    f"them with the same network"
                )
            return cls(statistics)
        seen = features_of(path, net, progress=progress)
        return cls(FeatureStatistics.of(seen.features), seen.features)


def compare(seen: Features, reference: Reference) -> dict[str, float]:
    """Every figure that can be had: the Fréchet distance always, others where features or logits are known."""
    figures = {"fid": frechet_distance(FeatureStatistics.of(seen.features), reference.statistics)}
    if reference.features is not None:
        ours, theirs = subset(seen.features), subset(reference.features)
        figures["kid"], figures["kid_std"] = kernel_distance(ours, theirs)
        figures["precision"], figures["recall"] = precision_recall(theirs, ours)
    if seen.logits is not None:
        figures["inception_score"], figures["inception_score_std"] = inception_score(seen.logits)
    return figures


def subset(features: Tensor, most: int = MAX_COMPARED) -> Tensor:
    """At most so many rows, chosen at random but always the same ones."""
    if len(features) <= most:
        return features
    chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[:most]
    return features[chosen.sort().values]
