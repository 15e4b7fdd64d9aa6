"""Small adversaries that judge patches, to keep reconstructions sharp."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.training.perceptual import WIDTHS


class PatchCritic(nn.Module):
    """Scores overlapping patches of a picture: high for photos, low for reconstructions.

    It is given the picture and what a small blur takes from it. Reconstructions differ in their finest detail, and a
    critic that must first find it is fooled before it has learnt anything.
    """

    def __init__(self, channels: int = 64, layers: int = 3) -> None:
        super().__init__()
        widths = [6, *(min(channels * 2**i, 4 * channels) for i in range(layers + 1))]
        self.convs = nn.ModuleList(
            nn.Conv2d(cin, cout, 4 if i < layers else 3, stride=2 if i < layers else 1, padding=1)
            for i, (cin, cout) in enumerate(pairwise(widths))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(16, cout) for cout in widths[2:])
        self.score = nn.Conv2d(widths[-1], 1, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        detail = images - F.avg_pool2d(images, 3, stride=1, padding=1)
        x = torch.cat([2 * images - 1, 8 * detail], dim=1)  # (B, 6, h, w)
        for index, conv in enumerate(self.convs):
            x = conv(x)
            if index:
                x = self.norms[index - 1](x)
            x = F.leaky_relu(x, 0.2)
        return self.score(x)  # (B, 1, h / 8, w / 8)


class FeatureCritic(nn.Module):
    """Scores the features that the perceptual distance sees, one small head for each depth, and the pixels.

    Features of a trained network show at once what a critic of pixels needs thousands of steps to find, and the
    distance has computed them anyway. The pixels are judged too, or details that the features miss would go wild;
    without a distance (no `widths`) they alone are.
    """

    def __init__(self, widths: tuple[int, ...] = WIDTHS, channels: int = 64) -> None:
        super().__init__()
        self.pixels = PatchCritic(channels)
        self.heads = nn.ModuleList(FeatureHead(width, channels) for width in widths)

    def forward(self, images: Tensor, features: Sequence[Tensor]) -> list[Tensor]:
        """Scores of pictures (B, 3, h, w) in [0, 1] and of their features, a map for each judge.

        Of small pictures the deepest features are a single place; those have no patches to judge.
        """
        judged = [head(x) for head, x in zip(self.heads, features, strict=True) if min(x.shape[-2:]) > 1]
        return [x.float() for x in (self.pixels(images), *judged)]


class FeatureHead(nn.Module):
    """Scores patches of features that have unit length at every place."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.gain = width**0.5
        self.narrow = nn.Conv2d(width, channels, 1)
        self.patch = nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(16, 2 * channels)
        self.score = nn.Conv2d(2 * channels, 1, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        x = F.leaky_relu(self.narrow(self.gain * features), 0.2)
        x = F.leaky_relu(self.norm(self.patch(x)), 0.2)
        return self.score(x)  # (B, 1, h / 2, w / 2)
