import math

import pytest
import torch

from recap.training.masking import MAGE_RATIO, MAR_RATIO, cosine_ratio, first_masked, normal_ratio, random_order


def test_cosine_ratios_follow_their_law() -> None:
    ratios = cosine_ratio(20_000, torch.Generator().manual_seed(0))
    assert ratios.mean().item() == pytest.approx(2 / math.pi, abs=0.01)
    assert (ratios < math.cos(math.pi / 4)).float().mean().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("law", [MAGE_RATIO, (0.55, 0.25, 0.5, 1.0), MAR_RATIO])
def test_truncated_normals_stay_inside_and_follow_their_law(law: tuple[float, float, float, float]) -> None:
    mean, std, low, high = law
    ratios = normal_ratio(20_000, torch.Generator().manual_seed(0), *law)
    assert ratios.min() >= low
    assert ratios.max() <= high
    reference = mean + std * torch.randn(400_000, generator=torch.Generator().manual_seed(1))
    reference = reference[(reference >= low) & (reference <= high)]
    for q in (0.1, 0.5, 0.9):
        assert ratios.quantile(q).item() == pytest.approx(reference[:100_000].quantile(q).item(), abs=0.01)


def test_masks_have_the_asked_size_and_are_spread_evenly() -> None:
    ratios = torch.tensor([0.0, 0.1, 0.5, 1.0]).repeat(500)
    masks = first_masked(random_order(2000, 16, torch.Generator().manual_seed(0)), ratios)
    assert masks.sum(1)[:4].tolist() == [1, 2, 8, 16]
    assert masks[2::4].float().mean(0).sub(0.5).abs().max() < 0.1
