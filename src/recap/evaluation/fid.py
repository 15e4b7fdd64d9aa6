"""The Fréchet inception distance: how far apart two sets of features are, each taken as a Gaussian."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from recap.limits import read_arrays

TOLERANCE = 1e-4  # how negative an eigenvalue rounding may make, over the largest one


class FeatureStatistics:
    """Mean and covariance of a stream of features, in float64.

    Features come in batches of any size, in any order and from any number of shards: the result is that of all of
    them at once. The sums are centred, so nothing is lost when the mean is large. They live where the first batch
    does.
    """

    def __init__(self) -> None:
        self._count: int | None = 0
        self._mean = torch.empty(0, dtype=torch.float64)  # (F,)
        self._scatter = torch.empty(0, 0, dtype=torch.float64)  # (F, F), sum of centred outer products

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """The statistics of one matrix of features, (n, F)."""
        statistics = cls()
        statistics.update(features)
        return statistics

    @property
    def count(self) -> int | None:
        """How many features were seen; None for a file that does not say."""
        return self._count

    @property
    def size(self) -> int:
        """The length of a feature; 0 before the first one."""
        return len(self._mean)

    @property
    def mean(self) -> Tensor:
        if self._count == 0:
            raise ValueError("there is no mean of 0 features; call update first")
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """The unbiased covariance, divided by count - 1."""
        if self._count is None:
            return self._scatter
        if self._count < 2:
            raise ValueError(f"a covariance needs 2 features or more but there are {self._count}")
        return self._scatter / (self._count - 1)

    def update(self, features: Tensor) -> None:
        """Add a batch of features, (n, F)."""
        if features.ndim != 2 or features.shape[1] == 0:
            raise ValueError(f"features have shape {tuple(features.shape)} but (n, F) is expected")
        if features.shape[0] == 0:
            return
        features = features.detach().double()
        mean = features.mean(dim=0)
        if not mean.isfinite().all():
            raise ValueError("features have infinite or NaN values; look at the images they come from")
        centred = features - mean
        self._add(len(features), mean, centred.T @ centred)

    def merge(self, other: "FeatureStatistics") -> None:
        """Add all that another shard has seen."""
        if other._count is None:
            raise ValueError("statistics from a file without a count `n` cannot be merged into others")
        if other._count > 0:
            self._add(other._count, other._mean, other._scatter)

    def _add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        if self._count is None:
            raise ValueError("statistics from a file without a count `n` cannot grow; start from an empty one")
        if self._count == 0:
            self._count, self._mean, self._scatter = count, mean.clone(), scatter.clone()
            return
        if len(mean) != self.size:
            raise ValueError(f"features of size {len(mean)} cannot join those of size {self.size}")
        mean, scatter = mean.to(self._mean.device), scatter.to(self._mean.device)
        total = self._count + count
        shift = mean - self._mean
        # two centred sums about different means: what they miss is the outer product of the shift
        self._scatter = self._scatter + scatter + torch.outer(shift, shift) * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._count = total

    def save(self, path: str | Path, *, compact: bool = False, **beside: np.ndarray) -> None:
        """Write an npz file with the keys `mu`, `sigma` and `n`, readable by other FID codes.

        `compact` writes a tenth of the bytes, for this library only: correlations in 12 bits, and deviations. A
        Fréchet distance to such statistics is right to about 0.01. `beside` are arrays to keep in the same file.
        """
        arrays = {"mu": self.mean.cpu().numpy(), **beside}
        if compact:
            arrays |= _packed(self.covariance.cpu())
        else:
            arrays["sigma"] = self.covariance.cpu().numpy()
        if self._count is not None:
            arrays["n"] = np.asarray(self._count, dtype=np.int64)
        write = np.savez_compressed if compact else np.savez
        with Path(path).open("wb") as file:  # given a file, numpy leaves its name alone
            write(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an npz file with `mu` and `sigma`; without `n` the count is unknown and the statistics cannot grow."""
        arrays = read_arrays(path)
        if not ("mu" in arrays and ("sigma" in arrays or set(arrays) >= PACKED)):
            raise ValueError(f"{path} has the keys {sorted(arrays)} but mu and sigma are expected")
        for key in arrays.keys() & {"mu", "sigma", "n", *PACKED}:
            if arrays[key].dtype.kind not in "fiu":
                raise ValueError(f"{path} has {key} of {arrays[key].dtype}; expected numbers, compute them again")
        try:
            mean = torch.from_numpy(arrays["mu"].astype(np.float64))
            covariance = (
                torch.from_numpy(arrays["sigma"].astype(np.float64))
                if "sigma" in arrays
                else _unpacked(arrays, len(mean))
            )
            count = int(arrays["n"]) if "n" in arrays else None
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise ValueError(f"{path} has statistics that are no numbers ({error}); compute them again") from error
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise ValueError(
                f"{path} has mu of shape {tuple(mean.shape)} and sigma of shape {tuple(covariance.shape)} "
                "but (F,) and (F, F) are expected"
            )
        if not (mean.isfinite().all() and covariance.isfinite().all()):
            raise ValueError(f"{path} has infinite or NaN values; compute the statistics again")
        if count is not None and count < 2:
            raise ValueError(f"{path} has n = {count} but a covariance needs 2 features or more")
        statistics = cls()
        statistics._count, statistics._mean = count, mean
        statistics._scatter = covariance if count is None else covariance * (count - 1)
        return statistics

    def state(self) -> dict[str, Tensor]:
        """What `from_state` goes on from, to the last bit."""
        if self._count is None:
            raise ValueError("statistics from a file without a count `n` cannot grow; there is no state to keep")
        return {"count": torch.tensor(self._count), "mean": self._mean, "scatter": self._scatter}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The statistics as they were when `state` was taken."""
        statistics = cls()
        statistics._count = int(state["count"])
        statistics._mean, statistics._scatter = state["mean"].clone(), state["scatter"].clone()
        return statistics


PACKED = {"deviation", "low", "high"}
LEVELS = 2**11 - 1  # of a correlation, to either side of 0


def _packed(covariance: Tensor) -> dict[str, np.ndarray]:
    """Deviations, and the correlations above the diagonal in 12 bits: a plane of low bytes and one of the rest."""
    deviation = covariance.diagonal().clamp(min=0).sqrt().float()
    scale = deviation.double().clamp_min(torch.finfo(torch.float32).tiny)
    size = len(covariance)
    rows, columns = torch.triu_indices(size, size, offset=1)
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
    correlation[rows, columns] = levels / LEVELS
    correlation[columns, rows] = levels / LEVELS
    return correlation * deviation[:, None] * deviation


def frechet_distance(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """The squared Fréchet distance of two Gaussians: |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½).

    Computed in float64 on the device of `a`. The distance is biased upwards by few features, and published values
    take 50,000, so a count at or below the size of a feature is warned of.
    """
    if a.size != b.size:
        raise ValueError(f"features of size {a.size} and {b.size} cannot be compared; use the same network for both")
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


def fid(features_a: Tensor, features_b: Tensor) -> float:
    """The Fréchet distance between two matrices of features, (n, F) and (m, F)."""
    return frechet_distance(FeatureStatistics.of(features_a), FeatureStatistics.of(features_b))


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
