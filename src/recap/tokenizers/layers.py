"""What both tokenizers are built of: norm and activation, the upsampling layer, and their sizes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 32  # of norms: a state dict does not say, but both published tokenizers agree


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


def depth(tensors: Mapping[str, Tensor], stack: str) -> int:
    """How many layers a stack has in a state dict; `stack` is a regular expression for its name."""
    found = {int(m[1]) for key in tensors if (m := re.match(rf"{stack}\.(\d+)\.", key))}
    return max(found, default=-1) + 1


def level_sizes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Channels, multipliers and groups of a tokenizer in a state dict."""
    channels = tensors["encoder.conv_in.weight"].shape[0]
    if channels % GROUPS:
        raise ValueError(
            f"the tokenizer in the file has {channels} channels, which the {GROUPS} norm groups of the published "
            f"ones do not divide, and a file does not say how many it has; build the network and load it by hand"
        )
    levels = range(depth(tensors, r"encoder\.down"))
    widths = [tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in levels]
    return {"channels": channels, "multipliers": tuple(width // channels for width in widths), "groups": GROUPS}


def tiny_tokenizer(config: Any) -> Any:
    """The same tokenizer, small."""
    return replace(config, channels=16, groups=8, multipliers=(1, 1, 2))


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
