"""What both tokenizers are built of: norm and activation, the upsampling layer, and the checks of their sizes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def check_sizes(channels: int, multipliers: tuple[int, ...], groups: int, **counts: int) -> None:
    """Raise a `ValueError` unless every count is positive and `groups` divides the width of every level."""
    for name, value in {"channels": channels, "groups": groups, **counts}.items():
        if value < 1:
            raise ValueError(f"{name} is {value} but at least 1 is expected")
    if not multipliers or min(multipliers) < 1:
        raise ValueError(f"multipliers are {multipliers} but positive integers, one for each level, are expected")
    for multiplier in multipliers:
        if channels * multiplier % groups != 0:
            raise ValueError(
                f"a level has {channels} * {multiplier} = {channels * multiplier} channels, "
                f"which {groups} groups do not divide; change channels, multipliers or groups"
            )


class NormSiLU(nn.GroupNorm):
    """The group norm of both tokenizers and the activation behind it, in the precision of the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__(groups, channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # the sums are float32 inside; a wide copy buys nothing
            weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
            return F.silu(F.group_norm(x, self.num_groups, weight, bias, self.eps))


class Upsample(nn.Module):
    """Double the side by repeating pixels, then smooth with a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")  # (B, C, 2h, 2w)
        out: Tensor = self.conv(x)
        return out
