"""The distances agree with those of torchmetrics, which are written independently."""

import pytest
import torch
from torch import Tensor, nn

from recap.evaluation import fid, kernel_distance

pytest.importorskip("torchmetrics")

COUNT, FEATURES = 300, 16


class Linear(nn.Module):
    """A small random extractor of features, as torchmetrics takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = FEATURES
        rng = torch.Generator().manual_seed(0)
        self.register_buffer("weight", torch.randn(3 * 8 * 8, FEATURES, generator=rng))

    def forward(self, images: Tensor) -> Tensor:
        weight = self.get_buffer("weight")
        return images.flatten(1).to(weight) @ weight


def images(seed: int, low: float, high: float) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(COUNT, 3, 8, 8, generator=rng)


def test_fid_agrees() -> None:
    from torchmetrics.image.fid import FrechetInceptionDistance

    a, b = images(0, 0, 1), images(1, 0.1, 0.8)
    theirs = FrechetInceptionDistance(feature=Linear(), normalize=True, input_img_size=(3, 8, 8))
    theirs.set_dtype(torch.float64)
    theirs.update(a, real=True)
    theirs.update(b, real=False)
    assert fid(Linear()(a), Linear()(b)) == pytest.approx(theirs.compute().item(), rel=1e-3)


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save all extracted features:UserWarning")
def test_kid_agrees() -> None:
    from torchmetrics.image.kid import KernelInceptionDistance

    a, b = images(0, 0, 1), images(1, 0.1, 0.8)
    # a subset of everything leaves nothing to chance
    theirs = KernelInceptionDistance(feature=Linear(), subsets=1, subset_size=COUNT, normalize=True)
    theirs.update(a, real=True)
    theirs.update(b, real=False)
    mean, _ = kernel_distance(Linear()(a), Linear()(b), subsets=1, size=COUNT)
    assert mean == pytest.approx(theirs.compute()[0].item(), rel=1e-3)
