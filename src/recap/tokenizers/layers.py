"""What both tokenizers are built of: sizes of their levels, norm and activation, and the decoder."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.core.bounds import WIDTH, check_bounds, check_number

BLOCKS = 64  # residual ones that a level may have
GRAIN = 32768  # numbers from which torch shares elementwise work among threads
VECTOR = 64  # numbers of which any processor's vectors take a whole number
GROUPS = 32  # of norms: a state dict does not say, but both published tokenizers agree


class Levels:
    """What follows from the sizes of a tokenizer."""

    __slots__ = ()
    channels: int
    multipliers: tuple[int, ...]

    @property
    def stride(self) -> int:
        """Pixels along one side of a token."""
        return 1 << (len(self.multipliers) - 1)

    @property
    def widths(self) -> list[int]:
        """Channels of each level, full resolution first."""
        return [self.channels * multiplier for multiplier in self.multipliers]


def check_levels(config: Any) -> None:
    """Raise a `ValueError` unless all sizes are in bounds and the groups of norms divide the width of every level."""
    check_bounds(config)
    channels, multipliers, groups = config.channels, config.multipliers, config.groups
    for width in config.widths:
        check_number("the width of a level", width, 1, WIDTH)
        if width % groups != 0:
            raise ValueError(
                f"a level has {width} channels, {channels} times one of {multipliers}, which {groups} groups do not "
                f"divide; change channels, multipliers or groups"
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
            return silu(F.group_norm(x, self.num_groups, weight, bias, self.eps))


def silu(x: Tensor) -> Tensor:
    """SiLU whose bits do not depend on the number of threads.

    Torch gives each thread a share, and computes the few numbers that fill no vector at its end in another way. Here
    shares end where a vector does, so that with one thread, or two or four, nothing changes.
    """
    if x.device.type != "cpu" or not x.is_contiguous() or (torch.is_grad_enabled() and x.requires_grad):
        return F.silu(x)
    flat, threads, first = x.view(-1), torch.get_num_threads(), 0
    out = torch.empty_like(flat)
    while first < len(flat):
        rest = size = len(flat) - first
        while size % (even := VECTOR * max(1, min(threads, -(-size // GRAIN)))):
            size = size // even * even
        piece = slice(first, first + (size or rest))
        torch.ops.aten.silu.out(flat[piece], out=out[piece])
        first = piece.stop
    return out.view(x.shape)


class Pointwise(nn.Conv2d):
    """A convolution of 1 by 1, as a matrix product on a CPU: there torch splits its sums by the number of threads."""

    def __init__(self, cin: int, cout: int, bias: bool = True) -> None:
        super().__init__(cin, cout, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x)
        weight, columns = self.weight.flatten(1).expand(len(x), -1, -1), x.flatten(2)  # (B, O, C), (B, C, N)
        if self.bias is None:
            made = torch.bmm(weight, columns)
        else:
            made = torch.baddbmm(self.bias.view(1, -1, 1), weight, columns)
        return made.view(*made.shape[:2], *x.shape[2:])  # (B, O, h, w)


Block = Callable[[int, int, int], nn.Module]  # from channels in and out, and groups of its norms


class Level(nn.Module):
    """The residual blocks of one resolution, and in the decoder the step to the next."""

    def __init__(
        self, block: Block, cin: int, cout: int, blocks: int, groups: int, *, upsample: bool = False
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(block(cout if i else cin, cout, groups) for i in range(blocks))
        self.upsample = nn.Sequential()
        if upsample:  # (B, C, 2h, 2w)
            self.upsample.add_module("repeat", nn.Upsample(scale_factor=2.0))
            self.upsample.add_module("conv", nn.Conv2d(cout, cout, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.block:
            x = block(x)
        return self.upsample(x)


class Decoder(nn.Module):
    """Latents to pixels; `mid` works at the lowest resolution, every level has so many `blocks`."""

    def __init__(self, config: Any, mid: nn.Module, block: Block, blocks: int) -> None:
        super().__init__()
        widths, groups = config.widths, config.groups
        self.conv_in = nn.Conv2d(config.latent_channels, widths[-1], 3, padding=1)
        self.mid = mid
        self.up = nn.ModuleList(
            Level(block, cin, cout, blocks, groups, upsample=level > 0)
            for level, (cin, cout) in enumerate(zip([*widths[1:], widths[-1]], widths, strict=True))
        )
        self.norm_out = NormSiLU(widths[0], groups)
        self.conv_out = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, latent: Tensor) -> Tensor:
        x = self.mid(self.conv_in(latent))
        for level in reversed(self.up):  # stored with full resolution first
            x = level(x)
        return self.conv_out(self.norm_out(x))  # (B, 3, H, W)
