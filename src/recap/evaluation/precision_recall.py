"""Improved precision and recall (Kynkäänniemi et al., 2019): how many images look real, and how much is covered."""

import torch
from torch import Tensor

ROUNDING = 1e-12  # of a squared distance, over the squared lengths it is the difference of


def precision_recall(real: Tensor, ours: Tensor, *, neighbours: int = 3, block: int = 1024) -> tuple[float, float]:
    """The share of `ours` (m, F) near features of `real` (n, F), and the share of `real` near features of `ours`.

    Near a feature means no farther than its `neighbours`-th nearest other feature of the same set. Distances are
    computed in float64 on the device of `real`, for `block` features at a time against a whole set, so the largest
    matrix is (block, max(n, m)).
    """
    if neighbours < 1 or block < 1:
        raise ValueError(
            f"neighbours={neighbours} and block={block} were asked for but 1 or more of each is expected"
        )
    for name, features in (("real", real), ("ours", ours)):
        if features.ndim != 2 or features.shape[1] == 0:
            raise ValueError(f"{name} has shape {tuple(features.shape)} but (n, F) is expected")
        if len(features) <= neighbours:
            raise ValueError(
                f"{name} has {len(features)} features, and none has {neighbours} neighbours; "
                f"give {neighbours + 1} or more"
            )
        if not features.isfinite().all():
            raise ValueError(f"{name} has infinite or NaN values; look at the images they come from")
    if real.shape[1] != ours.shape[1]:
        raise ValueError(
            f"features of size {real.shape[1]} and {ours.shape[1]} cannot be compared; use the same network for both"
        )
    real, ours = real.detach().double(), ours.detach().to(real.device).double()
    centre = real.mean(dim=0)  # distances stay as they are, and rounding is that of smaller numbers
    real, ours = real - centre, ours - centre
    return _share(ours, real, neighbours, block), _share(real, ours, neighbours, block)


def _share(points: Tensor, features: Tensor, neighbours: int, block: int) -> float:
    """The share of `points` that are near one of the `features` or more."""
    reach = torch.cat([_reach(features, start, neighbours, block) for start in range(0, len(features), block)])
    near = 0
    for start in range(0, len(points), block):
        part = points[start : start + block]
        # a point that lies on the edge counts as near, whichever way its distance was rounded
        slack = ROUNDING * (_squares(part)[:, None] + _squares(features))
        near += int((_distances(part, features) <= reach + slack).any(dim=1).sum())
    return near / len(points)


def _reach(features: Tensor, start: int, neighbours: int, block: int) -> Tensor:
    """For a block of features: the squared distance to the `neighbours`-th nearest other one."""
    part = features[start : start + block]
    distances = _distances(part, features)
    rows = torch.arange(len(part), device=part.device)
    distances[rows, start + rows] = torch.inf  # a feature is no neighbour of its own
    return distances.kthvalue(neighbours, dim=1).values  # (block,)


def _distances(x: Tensor, y: Tensor) -> Tensor:
    squares = _squares(x)[:, None] + _squares(y)
    return torch.addmm(squares, x, y.T, alpha=-2).clamp_(min=0)  # (n, m), squared


def _squares(x: Tensor) -> Tensor:
    return x.square().sum(dim=1)
