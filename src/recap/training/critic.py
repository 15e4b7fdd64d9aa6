"""A small adversary that judges patches, to keep reconstructions sharp."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
