"""The VQGAN of MaskGIT, shared by MAGE and AutoNAT: images to code ids and back.

It is the PyTorch form of MaskGIT's tokenizer: no attention, and images in [0, 1]. Attribute names are those
of the official checkpoint, so its state dict loads with `strict=True`; see `clean` for the other names.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.core.bounds import COUNT, WIDTH, bounded
from recap.tokenizers.images import check_images, check_square, to_grid, to_sequence
from recap.tokenizers.layers import (
    BLOCKS,
    Decoder,
    Level,
    Levels,
    NormSiLU,
    Pointwise,
    check_levels,
    depth,
    level_sizes,
)

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, slots=True)
class VQGANConfig(Levels):
    """Sizes of a VQGAN; the defaults are those of MaskGIT's tokenizer with 16-pixel tokens."""

    channels: int = bounded(128, 1, WIDTH)
    # widths of levels over `channels`, full resolution first
    multipliers: tuple[int, ...] = bounded((1, 1, 2, 2, 4), 1, WIDTH)
    blocks: int = bounded(2, 1, BLOCKS)  # residual blocks in each level
    latent_channels: int = bounded(256, 1, WIDTH)
    codes: int = bounded(1024, 1, COUNT)
    groups: int = bounded(32, 1, WIDTH)

    def __post_init__(self) -> None:
        check_levels(self)


def infer(tensors: Mapping[str, Tensor], heads: int | None = None) -> VQGANConfig:
    codes, latent = tensors["quantize.embedding.weight"].shape
    blocks = depth(tensors, r"encoder\.down\.0\.block")
    return VQGANConfig(**level_sizes(tensors), blocks=blocks, latent_channels=latent, codes=codes)


class VQGAN(nn.Module):
    """Turn images in [0, 1] into code ids, and code ids into images.

    Images follow the precision of the weights on the way in and come out in float32.
    """

    def __init__(self, config: VQGANConfig | None = None) -> None:
        super().__init__()
        self.config = config or VQGANConfig()
        self.encoder = Encoder(self.config)
        mid = middle(self.config.widths[-1], self.config.groups)
        self.decoder = Decoder(self.config, mid, ResBlock, self.config.blocks)
        self.quantize = Codebook(self.config.codes, self.config.latent_channels)

    def encode(self, images: Tensor) -> Tensor:
        """Return the code ids (B, N), row by row, of images in [0, 1]."""
        return self.quantize.nearest(to_sequence(self.latent(images)))  # (B, N)

    def decode(self, ids: Tensor) -> Tensor:
        """Return the images, in [0, 1], of code ids (B, N) in row-major order."""
        self._check_ids(ids)
        latent = to_grid(self.quantize.embedding(ids.long()))  # (B, C, h, w)
        return self.decode_latent(latent).float().clamp(0.0, 1.0)  # (B, 3, H, W)

    def decode_partly(self, ids: Tensor, masked: Tensor) -> Tensor:
        """Images like `decode`'s of which only some ids are known; the `masked` ones (B, N) count as their mean."""
        self._check_ids(ids.masked_fill(masked, 0))
        codes = self.quantize.embedding(ids.masked_fill(masked, 0).long())  # (B, N, C)
        shown = (~masked).unsqueeze(-1)
        mean = (codes * shown).sum(dim=1, keepdim=True) / shown.sum(dim=1, keepdim=True).clamp_min(1)  # (B, 1, C)
        return self.decode_latent(to_grid(torch.where(shown, codes, mean))).float().clamp(0.0, 1.0)  # (B, 3, H, W)

    def latent(self, images: Tensor) -> Tensor:
        """Return what the encoder makes of images in [0, 1], before it is rounded to codes."""
        check_images(images, self.config.stride)
        return self.encoder(images.to(self.quantize.embedding.weight.dtype))  # (B, C, h, w)

    def decode_latent(self, latent: Tensor) -> Tensor:
        """Return the pixels, about [0, 1] and not clamped, of a latent (B, C, h, w)."""
        return self.decoder(latent.to(self.quantize.embedding.weight.dtype))  # (B, 3, H, W)

    def _check_ids(self, ids: Tensor) -> None:
        if ids.ndim != 2 or ids.dtype not in INTEGERS:
            raise ValueError(
                f"ids have shape {tuple(ids.shape)} and dtype {ids.dtype} but integers of shape (B, N) are "
                "expected; pass ids as `encode` returns them"
            )
        check_square(ids.shape[1])
        codes = self.config.codes
        if ((ids < 0) | (ids >= codes)).any():
            raise ValueError(
                f"ids span {ids.min().item()} to {ids.max().item()} but 0 to {codes - 1} is expected; "
                "decode every masked position first and leave class ids out"
            )


class Codebook(nn.Module):
    def __init__(self, codes: int, channels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, channels)

    def nearest(self, latent: Tensor) -> Tensor:
        """Return the ids of the codes nearest to a sequence of latents (B, N, C)."""
        # Differences, not a matrix product: autocast and TF32 would round the product and confuse near codes.
        distance = torch.cdist(
            latent.float(), self.embedding.weight.float(), compute_mode="donot_use_mm_for_euclid_dist"
        )  # (B, N, V)
        return distance.argmin(dim=-1)  # (B, N)


class Encoder(nn.Module):
    """Images in [0, 1] to latents."""

    def __init__(self, config: VQGANConfig) -> None:
        super().__init__()
        widths, groups = config.widths, config.groups
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1, bias=False)
        self.down = nn.ModuleList(
            Level(ResBlock, cin, cout, config.blocks, groups)
            for cin, cout in zip([config.channels, *widths], widths, strict=False)
        )
        self.mid = middle(widths[-1], groups)
        self.norm_out = NormSiLU(widths[-1], groups)
        self.conv_out = Pointwise(widths[-1], config.latent_channels)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_in(images)
        for i, level in enumerate(self.down):
            if i:
                x = F.avg_pool2d(x, 2)  # (B, C, h / 2, w / 2)
            x = level(x)
        x = self.mid(x)
        return self.conv_out(self.norm_out(x))  # (B, C, h, w)


def middle(channels: int, groups: int) -> nn.Sequential:
    """Return the section at the lowest resolution, under its official names."""
    blocks = {name: ResBlock(channels, channels, groups) for name in ("block_1", "block_2")}
    return nn.Sequential(OrderedDict[str, nn.Module](blocks))


class ResBlock(nn.Module):
    """Two convolutions added to the input; where the widths differ, added to a projection of themselves."""

    def __init__(self, cin: int, cout: int, groups: int) -> None:
        super().__init__()
        self.norm1 = NormSiLU(cin, groups)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, bias=False)
        self.norm2 = NormSiLU(cout, groups)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=False)
        self.nin_shortcut = Pointwise(cout, cout, bias=False) if cin != cout else None

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv1(self.norm1(x))  # (B, cout, h, w)
        h = self.conv2(self.norm2(h))
        if self.nin_shortcut is None:
            return x + h
        # MaskGIT's original projects the branch, not the input, and the weights were trained that way.
        return h + self.nin_shortcut(h)


def clean(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the losses that trained a tokenizer; keys of open-muse become those of this class, others stay."""

    def renamed(key: str) -> str:
        key = re.sub(r"\b(encoder|decoder)\.mid\.([01])\.", lambda m: f"{m[1]}.mid.block_{int(m[2]) + 1}.", key)
        return re.sub(r"\b(decoder\.up\.\d+)\.upsample_conv\.", r"\1.upsample.conv.", key)

    return {renamed(key): value for key, value in tensors.items() if not key.startswith("loss.")}
