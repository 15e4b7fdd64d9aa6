"""Pictures, arrays and tensors at the public edge: images and masks in, images out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops
from torch import Tensor

from recap.view.pictures import SizeCheck, eight_bits

Picture = Image.Image | np.ndarray | Tensor
WHITE = 128  # of an 8-bit mask: this and more is to be redrawn
VEIL = 224  # of 255: how much of a picture its mask covers where both are shown
Opener = Callable[[SizeCheck], Image.Image]  # opens a picture once its size was checked
PLACES = ("left", "right", "top", "bottom", "center")


def batch_of(images: Picture | Sequence[Picture], side: int) -> Tensor:
    """Images (B, 3, side, side) in [0, 1] from pictures, arrays (.., h, w, 3) or tensors (.., 3, h, w).

    Integers mean 0 to 255, floats 0 to 1.
    """
    parts = []
    for image in _each(images, "image"):
        values = _shares(image, "image", "RGB")
        last = not isinstance(image, Tensor)  # where the colours are
        if values.ndim not in (3, 4) or values.shape[-1 if last else -3] != 3:
            wanted = "(h, w, 3) or (B, h, w, 3)" if last else "(3, h, w) or (B, 3, h, w)"
            raise ValueError(f"an image has shape {tuple(values.shape)} but {wanted} is expected, in RGB")
        values = values.movedim(-1, -3) if last else values
        parts.append(values.reshape(-1, *values.shape[-3:]))
    return _joined(parts, side, "image")  # (B, 3, h, w)


def masks_of(masks: Picture | Sequence[Picture], side: int) -> Tensor:
    """Masks (B, side, side), True where an image is to be redrawn: white, True, or 1 of floats."""
    parts = []
    for mask in _each(masks, "mask"):
        values = _shares(mask, "mask", "L")
        if values.ndim == 4 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim not in (2, 3):
            raise ValueError(
                f"a mask has shape {tuple(values.shape)} but (h, w), (B, h, w) or (B, 1, h, w) is expected"
            )
        parts.append(values.reshape(-1, *values.shape[-2:]) >= WHITE / 255)
    return _joined(parts, side, "mask")  # (B, h, w)


def token_mask(masks: Tensor, stride: int) -> Tensor:
    """Masks of tokens (B, N), in raster order, from masks of pixels: a token is redrawn if any of its pixels is."""
    batch, height, width = masks.shape
    return masks.view(batch, height // stride, stride, width // stride, stride).any(4).any(2).flatten(1)


def as_type(images: Tensor, output_type: str) -> Any:
    """Images (B, 3, H, W) in [0, 1] as a list of pictures ("pil"), an array ("np") or as they are ("pt")."""
    if output_type == "pt":
        return images
    pixels = images.permute(0, 2, 3, 1).cpu().numpy()
    if output_type == "np":
        return pixels
    return [Image.fromarray(image) for image in (pixels * 255).round().astype(np.uint8)]


def fit(image: Image.Image, side: int, *, mask: bool = False) -> Image.Image:
    """The centre of a picture, scaled to a square of `side` pixels; of a mask, what it touches stays white."""
    image, least = eight_bits(image), min(image.size)
    left, top = (image.width - least) // 2, (image.height - least) // 2
    box = (left, top, left + least, top + least)
    if not mask:
        return image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS, box=box)
    white = np.asarray(image.convert("L").crop(box)) >= WHITE
    for axis in (0, 1):
        spans = [slice(i * least // side, -(-(i + 1) * least // side)) for i in range(side)]
        white = np.stack([white.take(range(least)[span], axis).any(axis) for span in spans], axis)
    return Image.fromarray(white.astype(np.uint8) * 255)


def open_pair(
    open_image: Opener, open_mask: Opener | None, side: int, crop: bool
) -> tuple[Image.Image, Image.Image | None]:
    """A picture and the mask that was drawn over it, as they are or both made to fit.

    They are opened here, because sizes that do not go together are refused before any pixel is decoded.
    """
    sizes: list[tuple[int, int]] = []

    def check(name: str, size: tuple[int, int]) -> None:
        if sizes and size != sizes[0]:
            raise ValueError(
                f"the mask is {size[0]} x {size[1]} pixels but the image {sizes[0][0]} x {sizes[0][1]}; "
                f"make them of one size"
            )
        sizes.append(size)
        if not crop:
            check_side(size, side, name)

    image = open_image(lambda size, _: check("image", size))
    image = fit(image, side) if crop else image
    mask = None if open_mask is None else open_mask(lambda size, _: check("mask", size))
    return image, fit(mask, side, mask=True) if crop and mask is not None else mask


def box_mask(side: int, left: int, top: int, right: int, bottom: int) -> Image.Image:
    """A mask that is white from `left` and `top` up to, but without, `right` and `bottom`."""
    if not (0 <= left < right <= side and 0 <= top < bottom <= side):
        raise ValueError(
            f"the box {left},{top},{right},{bottom} is no part of {side} x {side} pixels; give left,top,right,bottom "
            f"with 0 <= left < right <= {side} and 0 <= top < bottom <= {side}"
        )
    mask = Image.new("L", (side, side), 0)
    mask.paste(255, (left, top, right, bottom))
    return mask


def keep_mask(side: int, where: str, share: float) -> Image.Image:
    """A mask that is black over a share of the image at its left, right, top, bottom or center, white elsewhere.

    The share is one of a side's length: what is kept at the center is a square of that side.
    """
    if where not in PLACES:
        raise ValueError(f"{where!r} is no place to keep; give one of {', '.join(PLACES)}")
    kept = round(side * share) if 0 < share < 1 else 0
    if not 0 < kept < side:
        raise ValueError(f"a share of {share} of {side} pixels would keep all or nothing; give one between 0 and 1")
    first = (side - kept) // 2
    boxes = {
        "left": (0, 0, kept, side),
        "right": (side - kept, 0, side, side),
        "top": (0, 0, side, kept),
        "bottom": (0, side - kept, side, side),
        "center": (first, first, first + kept, first + kept),
    }
    return ImageChops.invert(box_mask(side, *boxes[where]))


def marked(image: Image.Image, masked: Tensor) -> Image.Image:
    """The image with a veil over the tokens that `masked` (N) says are drawn anew."""
    side = math.isqrt(len(masked))
    veil = Image.fromarray(masked.cpu().view(side, side).numpy().astype(np.uint8) * VEIL)
    return Image.composite(
        Image.new("RGB", image.size, "white"), image, veil.resize(image.size, Image.Resampling.NEAREST)
    )


def check_side(size: tuple[int, int], side: int, name: str) -> None:
    """Refuse a picture in another size than the model's."""
    if size != (side, side):
        call = f"recap.fit({name}, {side}{', mask=True' if name == 'mask' else ''})"
        raise ValueError(
            f"the {name} is {size[0]} x {size[1]} pixels but this model draws {side} x {side}; "
            f"crop and scale it first, with {call} or --fit on the command line"
        )


def _each(given: Picture | Sequence[Picture], name: str) -> Sequence[Picture]:
    several = [given] if isinstance(given, Picture) else given
    if not isinstance(several, Sequence) or not several or not all(isinstance(one, Picture) for one in several):
        raise ValueError(f"{name} is {given!r}; give a PIL image, an array or a tensor, or a list of them")
    return several


def _shares(given: Picture, name: str, mode: str) -> Tensor:
    """What was given as float32 of 0 to 1, from integers of 0 to 255, floats of 0 to 1, or the truths of a mask."""
    pixels = np.asarray(eight_bits(given).convert(mode)) if isinstance(given, Image.Image) else given
    if isinstance(pixels, np.ndarray):
        if pixels.dtype.kind not in "buif":
            raise ValueError(f"the {name} is an array of {pixels.dtype}; give 8-bit integers, or floats in [0, 1]")
        # torch cannot compare all kinds of integers
        pixels = torch.from_numpy(np.array(pixels.astype(np.int64) if pixels.dtype.kind in "ui" else pixels))
    values = pixels.detach().cpu()
    truths = values.dtype == torch.bool and name == "mask"
    most = 1 if truths or values.is_floating_point() else 255
    odd = values.is_complex() or (values.dtype == torch.bool and not truths)
    if odd or not bool(((values >= 0) & (values <= most)).all()):
        raise ValueError(
            f"the {name} has values of {values.dtype} that are not 0 to {most}; "
            f"give 8-bit integers, or floats in [0, 1]"
        )
    return values.float() / most


def _joined(parts: Sequence[Tensor], side: int, name: str) -> Tensor:
    for part in parts:
        height, width = part.shape[-2:]
        check_side((width, height), side, name)
    return torch.cat(list(parts))
