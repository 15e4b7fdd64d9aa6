"""Images and token sequences at the public edge: checks, and the way between a grid and a sequence."""

import math

from torch import Tensor


def check_images(images: Tensor, stride: int) -> None:
    """Raise a `ValueError` unless `images` is a float batch of square RGB images that `stride` divides."""
    if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise ValueError(
            f"images are {tuple(images.shape)} of {images.dtype} but (B, 3, h, w) of floats in [0, 1] is expected; "
            f"put colours second, add a batch axis to a single image, convert 8-bit ones with images.float() / 255"
        )
    height, width = images.shape[2:]
    if height != width or height == 0 or height % stride != 0:
        raise ValueError(
            f"images are {height} high and {width} wide but squares with a side of a positive multiple of {stride} "
            f"are expected; crop or resize them first"
        )


def check_square(tokens: int) -> None:
    """Raise a `ValueError` unless `tokens` tokens fill a square grid."""
    if tokens == 0 or math.isqrt(tokens) ** 2 != tokens:
        raise ValueError(
            f"an image has {tokens} tokens but a square number is expected (256 for a grid of 16 by 16); "
            "pass every token of the image and no class or buffer tokens"
        )


def to_sequence(grid: Tensor) -> Tensor:
    """Read a grid row by row into a sequence."""
    return grid.flatten(2).transpose(1, 2)  # (B, N, C)


def to_grid(sequence: Tensor) -> Tensor:
    """Lay a sequence out row by row on a square grid."""
    batch, tokens, channels = sequence.shape
    side = math.isqrt(tokens)
    return sequence.transpose(1, 2).reshape(batch, channels, side, side)  # (B, C, side, side)
