"""The kernel inception distance: like FID, but unbiased, so that it can be read with few images."""

import torch
from torch import Tensor


def kernel_distance(
    a: Tensor, b: Tensor, *, subsets: int = 100, size: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """How far apart two sets of features (n, F) and (m, F) are: the mean over random subsets, and its deviation.

    The distance is the unbiased squared maximum mean discrepancy with the kernel (x·y / F + 1)³, in float64 on the
    device of `a`; that of two sets from one source is zero on average, and may be slightly negative. Each subset
    takes `size` features of each set, or as many as the smaller set has.
    """
    for features in (a, b):
        if features.ndim != 2 or features.shape[1] == 0:
            raise ValueError(f"features have shape {tuple(features.shape)} but (n, F) is expected")
        if len(features) < 2:
            raise ValueError(f"a kernel distance needs 2 features or more but there are {len(features)}")
        if not features.isfinite().all():
            raise ValueError("features have infinite or NaN values; look at the images they come from")
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"features of size {a.shape[1]} and {b.shape[1]} cannot be compared; use the same network for both"
        )
    if subsets < 1 or size < 2:
        raise ValueError(f"subsets={subsets} of size={size} were asked for; take 1 or more, of size 2 or more")
    size = min(size, len(a), len(b))
    rng = torch.Generator().manual_seed(seed)
    distances = [_discrepancy(_drawn(a, size, rng), _drawn(b, size, rng).to(a.device)) for _ in range(subsets)]
    values = torch.tensor(distances, dtype=torch.float64)
    return values.mean().item(), values.std(correction=0).item()


def _drawn(features: Tensor, size: int, rng: torch.Generator) -> Tensor:
    chosen = torch.randperm(len(features), generator=rng)[:size]
    return features.detach()[chosen.to(features.device)].double()  # (size, F)


def _discrepancy(x: Tensor, y: Tensor) -> float:
    """The unbiased estimate: pairs of a feature with itself are left out of the two inner means."""
    n = len(x)
    within = sum((kernel.sum() - kernel.trace()) / (n * (n - 1)) for kernel in (_kernel(x, x), _kernel(y, y)))
    return float(within - 2 * _kernel(x, y).mean())


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3  # (n, m)
