"""KL-16, the autoencoder of MAR: images to continuous tokens and back.

Attribute names are those of the official checkpoint, so its `model` dict loads with `strict=True`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from recap.core.bounds import SCALE, WIDTH, bounded
from recap.tokenizers.images import check_images, check_square, to_grid, to_sequence
from recap.tokenizers.layers import BLOCKS, Decoder, Levels, NormSiLU, Pointwise, check_levels, depth, level_sizes


@dataclass(frozen=True, slots=True)
class KLVAEConfig(Levels):
    """Sizes of a KL autoencoder; the defaults are those of KL-16."""

    channels: int = bounded(128, 1, WIDTH)
    # widths of levels over `channels`, full resolution first
    multipliers: tuple[int, ...] = bounded((1, 1, 2, 2, 4), 1, WIDTH)
    latent_channels: int = bounded(16, 1, WIDTH)
    encoder_blocks: int = bounded(2, 1, BLOCKS)  # residual blocks in each level
    decoder_blocks: int = bounded(3, 1, BLOCKS)
    latent_scale: float = bounded(0.2325, 1 / SCALE, SCALE)  # makes the latents' standard deviation about one
    groups: int = bounded(32, 1, WIDTH)

    def __post_init__(self) -> None:
        check_levels(self)


def infer(tensors: Mapping[str, Tensor], heads: int | None = None) -> KLVAEConfig:
    return KLVAEConfig(
        **level_sizes(tensors),
        latent_channels=tensors["post_quant_conv.weight"].shape[0],
        encoder_blocks=depth(tensors, r"encoder\.down\.0\.block"),
        decoder_blocks=depth(tensors, r"decoder\.up\.0\.block"),
    )


class KLVAE(nn.Module):
    """Turn images in [0, 1] into continuous tokens of about unit variance, and tokens into images.

    Inputs follow the precision of the weights; tokens and images come out in float32.
    """

    def __init__(self, config: KLVAEConfig | None = None) -> None:
        super().__init__()
        self.config = config or KLVAEConfig()
        latent = self.config.latent_channels
        self.encoder = Encoder(self.config)
        mid = middle(self.config.widths[-1], self.config.groups)
        self.decoder = Decoder(self.config, mid, ResBlock, self.config.decoder_blocks)  # no attention in its levels
        self.quant_conv = Pointwise(2 * latent, 2 * latent)
        self.post_quant_conv = Pointwise(latent, latent)

    def encode(self, images: Tensor) -> Tensor:
        """Return the tokens of images in [0, 1]: the mean of the posterior."""
        mean, _ = self.moments(images).float().chunk(2, dim=1)  # (B, C, h, w) each
        return to_sequence(mean) * self.config.latent_scale  # (B, N, C)

    def decode(self, tokens: Tensor) -> Tensor:
        """Return the images, in [0, 1], of tokens (B, N, C) in row-major order."""
        channels = self.config.latent_channels
        if tokens.ndim != 3 or tokens.shape[2] != channels or not tokens.is_floating_point():
            raise ValueError(
                f"tokens have shape {tuple(tokens.shape)} and dtype {tokens.dtype} but floats of shape "
                f"(B, N, {channels}) are expected; pass tokens as `encode` returns them"
            )
        check_square(tokens.shape[1])
        latent = to_grid(tokens) / self.config.latent_scale  # (B, C, h, w)
        return (self.decode_latent(latent).float() * 0.5 + 0.5).clamp(0.0, 1.0)  # (B, 3, H, W)

    def decode_partly(self, tokens: Tensor, masked: Tensor) -> Tensor:
        """Images like `decode`'s of which only some tokens are known; the `masked` ones (B, N) count as 0."""
        return self.decode(tokens.masked_fill(masked.unsqueeze(-1), 0.0))  # (B, 3, H, W)

    def moments(self, images: Tensor) -> Tensor:
        """Return the posterior of images in [0, 1]: its mean and log-variance, stacked along the channels."""
        check_images(images, self.config.stride)
        pixels = (2 * images - 1).to(self.quant_conv.weight.dtype)
        return self.quant_conv(self.encoder(pixels))  # (B, 2C, h, w)

    def decode_latent(self, latent: Tensor) -> Tensor:
        """Return the pixels, about [-1, 1] and not clamped, of a latent (B, C, h, w) without the scale."""
        latent = latent.to(self.post_quant_conv.weight.dtype)
        return self.decoder(self.post_quant_conv(latent))  # (B, 3, H, W)


class Encoder(nn.Module):
    """Pixels in [-1, 1] to the moments of the latent, before `quant_conv`."""

    def __init__(self, config: KLVAEConfig) -> None:
        super().__init__()
        widths, groups, last = config.widths, config.groups, len(config.widths) - 1
        self.conv_in = nn.Conv2d(3, config.channels, 3, padding=1)
        self.down = nn.ModuleList(
            DownLevel(cin, cout, config.encoder_blocks, groups, attend=level == last, downsample=level < last)
            for level, (cin, cout) in enumerate(zip([config.channels, *widths], widths, strict=False))
        )
        self.mid = middle(widths[-1], groups)
        self.norm_out = NormSiLU(widths[-1], groups)
        self.conv_out = nn.Conv2d(widths[-1], 2 * config.latent_channels, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.conv_in(pixels)
        for level in self.down:
            x = level(x)
        x = self.mid(x)
        return self.conv_out(self.norm_out(x))  # (B, 2C, h, w)


class DownLevel(nn.Module):
    """One resolution of the encoder, with attention after every residual block where asked for."""

    def __init__(self, cin: int, cout: int, blocks: int, groups: int, *, attend: bool, downsample: bool) -> None:
        super().__init__()
        self.block = nn.ModuleList(ResBlock(cout if i else cin, cout, groups) for i in range(blocks))
        self.attn = nn.ModuleList(Attention(cout, groups) if attend else nn.Identity() for _ in range(blocks))
        self.downsample = nn.Sequential()
        if downsample:  # (B, C, h / 2, w / 2), padded on the right and the bottom only
            self.downsample.add_module("pad", nn.ZeroPad2d((0, 1, 0, 1)))
            self.downsample.add_module("conv", nn.Conv2d(cout, cout, 3, stride=2))

    def forward(self, x: Tensor) -> Tensor:
        for block, attn in zip(self.block, self.attn, strict=True):
            x = attn(block(x))
        return self.downsample(x)


def middle(channels: int, groups: int) -> nn.Sequential:
    """Return the section at the lowest resolution, under its official names."""
    parts: dict[str, nn.Module] = {"block_1": ResBlock(channels, channels, groups)}
    parts |= {"attn_1": Attention(channels, groups), "block_2": ResBlock(channels, channels, groups)}
    return nn.Sequential(OrderedDict(parts))


class ResBlock(nn.Module):
    """Two convolutions added to the input, which a 1x1 convolution widens where the widths differ."""

    def __init__(self, cin: int, cout: int, groups: int) -> None:
        super().__init__()
        self.norm1 = NormSiLU(cin, groups)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm2 = NormSiLU(cout, groups)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.nin_shortcut = Pointwise(cin, cout) if cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(self.norm1(x))  # (B, cout, h, w)
        h = self.conv2(self.norm2(h))
        return self.nin_shortcut(x) + h


class Attention(nn.Module):
    """Single-head self-attention over all positions of the grid."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.q = Pointwise(channels, channels)
        self.k = Pointwise(channels, channels)
        self.v = Pointwise(channels, channels)
        self.proj_out = Pointwise(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        # The head axis is there because the fused kernels, which keep the softmax in float32, want four axes.
        q, k, v = (to_sequence(conv(h)).unsqueeze(1) for conv in (self.q, self.k, self.v))  # (B, 1, N, C) each
        h = F.scaled_dot_product_attention(q, k, v).squeeze(1)  # (B, N, C)
        h = h.transpose(1, 2).reshape(x.shape)  # (B, C, h, w)
        return x + self.proj_out(h)
