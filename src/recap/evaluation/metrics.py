"""How far images are from others, as functions of their features: FID, KID, precision and recall, Inception Score.

Features are matrices (n, F), one row an image; every sum is in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from recap.checkpoints.safe_files import read_arrays

TOLERANCE = 1e-4  # how negative an eigenvalue rounding may make, over the largest one
ROUNDING = 1e-12  # of a squared distance, over the squared lengths it is the difference of
BLOCK = 4096  # features in float64 at a time
PACKED = {"deviation", "low", "high"}
LEVELS = 2**11 - 1  # of a packed correlation, to either side of 0


@dataclass(frozen=True, slots=True)
class FeatureStatistics:
    """Mean (F,) and unbiased covariance (F, F) of features; what is None a file does not say."""

    mean: Tensor
    covariance: Tensor
    count: int | None = None
    classes: tuple[int, ...] | None = None  # how many images there are of each class

    @classmethod
    def of(cls, features: Tensor) -> Self:
        features = _checked(features, "features", least=2)
        blocks = torch.split(features, BLOCK)
        mean = torch.stack([block.double().sum(dim=0) for block in blocks]).sum(dim=0) / len(features)
        scatter = mean.new_zeros(len(mean), len(mean))
        for block in blocks:  # centred first, so nothing is lost when the mean is large
            centred = block.double() - mean
            scatter += centred.T @ centred
        return cls(mean, scatter / (len(features) - 1), len(features))

    @property
    def size(self) -> int:
        return len(self.mean)

    def save(self, path: str | Path, *, compact: bool = False) -> None:
        """Write an npz file with the keys `mu`, `sigma` and `n`, readable by other FID codes.

        `compact` writes a tenth of the bytes, for this library only: correlations in 12 bits, and deviations. A
        Fréchet distance to such statistics is right to about 0.01.
        """
        covariance = self.covariance.cpu()
        arrays = {"mu": self.mean.cpu().numpy()}
        arrays |= _packed(covariance) if compact else {"sigma": covariance.numpy()}
        known = {"n": self.count, "classes": self.classes}
        arrays |= {key: np.asarray(value, np.int64) for key, value in known.items() if value is not None}
        write = np.savez_compressed if compact else np.savez
        with Path(path).open("wb") as file:  # given a file, numpy leaves its name alone
            write(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an npz file with `mu` and `sigma`, and the numbers of images `n` and `classes` if it has them."""
        arrays = read_arrays(path)
        if not ("mu" in arrays and ("sigma" in arrays or set(arrays) >= PACKED)):
            raise ValueError(f"{path} has the keys {sorted(arrays)} but mu and sigma are expected")
        for key in arrays.keys() & {"mu", "sigma", "n", "classes", *PACKED}:
            if arrays[key].dtype.kind not in "fiu":
                raise ValueError(f"{path} has {key} of {arrays[key].dtype}; expected numbers, compute them again")
        try:
            mean = torch.from_numpy(arrays["mu"].astype(np.float64))
            sigma = arrays.get("sigma")
            covariance = _unpacked(arrays, len(mean)) if sigma is None else torch.from_numpy(sigma.astype(np.float64))
            count = int(arrays["n"]) if "n" in arrays else None
            classes = tuple(map(int, arrays["classes"])) if "classes" in arrays else None
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{path} has statistics that cannot be read ({error}); compute them again") from error
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise ValueError(
                f"{path} has mu of shape {tuple(mean.shape)} and sigma of shape {tuple(covariance.shape)} "
                "but (F,) and (F, F) are expected"
            )
        if not (mean.isfinite().all() and covariance.isfinite().all()):
            raise ValueError(f"{path} has infinite or NaN values; compute the statistics again")
        if count is not None and count < 2:
            raise ValueError(f"{path} has n = {count} but a covariance needs 2 features or more")
        return cls(mean, covariance, count, classes)


def _packed(covariance: Tensor) -> dict[str, np.ndarray]:
    """Deviations, and the correlations above the diagonal in 12 bits: a plane of low bytes and one of the rest."""
    deviation = covariance.diagonal().clamp(min=0).sqrt().float()
    scale = deviation.double().clamp_min(torch.finfo(torch.float32).tiny)
    rows, columns = torch.triu_indices(len(covariance), len(covariance), offset=1)
    levels = (covariance[rows, columns] / (scale[rows] * scale[columns]) * LEVELS).round().clamp(-LEVELS, LEVELS)
    shifted = (levels + LEVELS).to(torch.int16).numpy()
    return {
        "deviation": deviation.numpy(),
        "low": (shifted & 255).astype(np.uint8),
        "high": (shifted >> 8).astype(np.uint8),  # mostly equal, so it is compressed to next to nothing
    }


def _unpacked(arrays: Mapping[str, np.ndarray], size: int) -> Tensor:
    deviation = torch.from_numpy(arrays["deviation"].astype(np.float64))
    levels = torch.from_numpy(arrays["low"].astype(np.float64) + 256.0 * arrays["high"]) - LEVELS
    if deviation.shape != (size,) or levels.shape != (size * (size - 1) // 2,):
        raise ValueError(f"{len(deviation)} deviations and {len(levels)} correlations for {size} features")
    rows, columns = torch.triu_indices(size, size, offset=1)
    correlation = torch.eye(size, dtype=torch.float64)
    correlation[rows, columns] = correlation[columns, rows] = levels / LEVELS
    return correlation * deviation[:, None] * deviation


def frechet_distance(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """The squared Fréchet distance of two Gaussians: |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½).

    Computed on the device of `a`. The distance is biased upwards by few features, and published values take 50,000,
    so a count at or below the size of a feature is warned of.
    """
    _check_sizes(a.size, b.size)
    for statistics in (a, b):
        if statistics.count is not None and statistics.count <= a.size:
            warnings.warn(
                f"{statistics.count} features of size {a.size} give a singular covariance, and a Fréchet distance "
                f"far too large; take more than {a.size}, and 50,000 to compare with published values",
                stacklevel=2,
            )
    first, second = a.covariance, b.covariance.to(a.covariance.device)
    shift = a.mean - b.mean.to(a.mean.device)
    distance = shift @ shift + first.trace() + second.trace() - 2 * _trace_of_root(first, second)
    return float(distance)


def fid(a: Tensor, b: Tensor) -> float:
    """The Fréchet distance between two matrices of features."""
    return frechet_distance(FeatureStatistics.of(a), FeatureStatistics.of(b))


def _trace_of_root(first: Tensor, second: Tensor) -> Tensor:
    """tr((Σ₁ Σ₂)^½): that product has the eigenvalues of the symmetric Σ₁^½ Σ₂ Σ₁^½."""
    values, vectors = torch.linalg.eigh(first)
    root = (vectors * _non_negative(values).sqrt()) @ vectors.T
    product = root @ second @ root
    return _non_negative(torch.linalg.eigvalsh((product + product.T) / 2)).sqrt().sum()


def _non_negative(values: Tensor) -> Tensor:
    if values.min() < -TOLERANCE * values.abs().max():
        raise ValueError(
            f"a covariance has the eigenvalue {values.min():.3g} beside {values.max():.3g} but none below zero is "
            "expected; the statistics are not those of features"
        )
    return values.clamp(min=0)


def kernel_distance(
    a: Tensor, b: Tensor, *, subsets: int = 100, size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The kernel inception distance of two sets of features: the mean over random subsets, and its deviation.

    The distance is the unbiased squared maximum mean discrepancy with the kernel (x·y / F + 1)³, on the device of
    `a`; that of two sets from one source is zero on average, and may be slightly negative. Each subset takes `size`
    features of each set, or as many as the smaller set has.
    """
    a, b = _checked(a, "a", least=2), _checked(b, "b", least=2)
    _check_sizes(a.shape[1], b.shape[1])
    size = min(size, len(a), len(b))
    rng = torch.Generator().manual_seed(seed)

    def subset(features: Tensor) -> Tensor:
        chosen = torch.randperm(len(features), generator=rng)[:size]
        return features[chosen.to(features.device)].to(a.device, torch.float64)  # (size, F)

    values = torch.tensor([_discrepancy(subset(a), subset(b)) for _ in range(subsets)], dtype=torch.float64)
    return values.mean().item(), values.std(correction=0).item()


def _discrepancy(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate: pairs of a feature with itself are left out of the two inner means."""
    n = len(x)
    within = sum((kernel.sum() - kernel.trace()) / (n * (n - 1)) for kernel in (_kernel(x, x), _kernel(y, y)))
    return float(within - 2 * _kernel(x, y).mean())


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3  # (n, m)


def precision_recall(real: Tensor, ours: Tensor, *, neighbours: int = 3, block: int = 1024) -> tuple[float, float]:
    """Improved precision and recall (Kynkäänniemi et al., 2019): how many images look real, how much is covered.

    They are the share of `ours` (m, F) near features of `real` (n, F), and the share of `real` near features of
    `ours`. Near a feature means no farther than its `neighbours`-th nearest other feature of the same set. Distances
    are computed on the device of `real`, for `block` features at a time, so the largest matrix is
    (block, max(n, m)).
    """
    real, ours = (_checked(x, name, neighbours + 1) for name, x in (("real", real), ("ours", ours)))
    _check_sizes(real.shape[1], ours.shape[1])
    real, ours = real.double(), ours.to(real.device).double()
    centre = real.mean(dim=0)  # distances stay as they are, and rounding is that of smaller numbers
    real, ours = real - centre, ours - centre
    return _share(ours, real, neighbours, block), _share(real, ours, neighbours, block)


def _share(points: Tensor, features: Tensor, neighbours: int, block: int) -> float:
    """The share of `points` that are near one of the `features` or more."""
    # a feature is the nearest one to itself, and no neighbour of its own
    distances = (_distances(part, features) for part in torch.split(features, block))
    reach = torch.cat([part.kthvalue(neighbours + 1, dim=1).values for part in distances])
    near = 0
    for part in torch.split(points, block):
        # a point that lies on the edge counts as near, whichever way its distance was rounded
        slack = ROUNDING * (_squares(part)[:, None] + _squares(features))
        near += int((_distances(part, features) <= reach + slack).any(dim=1).sum())
    return near / len(points)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    squares = _squares(x)[:, None] + _squares(y)
    return torch.addmm(squares, x, y.T, alpha=-2).clamp_(min=0)  # (n, m), squared


def _squares(x: Tensor) -> Tensor:
    return x.square().sum(dim=1)


def inception_score(logits: Tensor, splits: int = 10) -> tuple[float, float]:
    """Mean and deviation over the splits of exp(E[KL(p(y|x) || p(y))]), from logits (n, classes).

    Image i belongs to split i % `splits`; where there are fewer images, each is a split of its own.
    """
    logits = _checked(logits, "logits", least=1).double()
    scores = []
    for part in (logits[split::splits] for split in range(min(splits, len(logits)))):
        logs = part.log_softmax(dim=1)
        marginal = logs.exp().mean(dim=0)
        scores.append(((logs.exp() * logs).sum(dim=1).mean() - torch.special.xlogy(marginal, marginal).sum()).exp())
    values = torch.stack(scores)
    return values.mean().item(), values.std(correction=0).item()


def _checked(features: Tensor, name: str, least: int) -> Tensor:
    if features.ndim != 2 or features.shape[1] == 0 or not features.is_floating_point():
        raise ValueError(f"{name} are {tuple(features.shape)} of {features.dtype}; expected (n, F) of floats")
    if len(features) < least:
        raise ValueError(f"{name} are those of {len(features)} images; give {least} or more")
    if not features.isfinite().all():
        raise ValueError(f"{name} have infinite or NaN values; look at the images they come from")
    return features.detach()


def _check_sizes(a: int, b: int) -> None:
    if a != b:
        raise ValueError(f"features of size {a} and {b} cannot be compared; use the same network for both")
