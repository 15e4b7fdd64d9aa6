"""The Inception weights of pytorch-fid, with torchvision's names, turned into ours."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from recap.checkpoints.pickles import check_tensors, read_pickle

OFFICIAL = "pt_inception-2015-12-05-6726825d.pth"

# Their names, in the order in which InceptionFeatures lists its layers.
_STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
_SQUARE = (
    "branch1x1",
    *("branch5x5_1", "branch5x5_2"),
    *("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"),
    "branch_pool",
)
_SHRINK_TO_17 = ("branch3x3", *("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"))
_FACTORISED = (
    "branch1x1",
    *("branch7x7_1", "branch7x7_2", "branch7x7_3"),
    *("branch7x7dbl_1", "branch7x7dbl_2", "branch7x7dbl_3", "branch7x7dbl_4", "branch7x7dbl_5"),
    "branch_pool",
)
_SHRINK_TO_8 = (
    *("branch3x3_1", "branch3x3_2"),
    *("branch7x7x3_1", "branch7x7x3_2", "branch7x7x3_3", "branch7x7x3_4"),
)
_EXPANDED = (
    "branch1x1",
    *("branch3x3_1", "branch3x3_2a", "branch3x3_2b"),
    *("branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3a", "branch3x3dbl_3b"),
    "branch_pool",
)
_BLOCKS = {
    "Mixed_5b": _SQUARE,
    "Mixed_5c": _SQUARE,
    "Mixed_5d": _SQUARE,
    "Mixed_6a": _SHRINK_TO_17,
    "Mixed_6b": _FACTORISED,
    "Mixed_6c": _FACTORISED,
    "Mixed_6d": _FACTORISED,
    "Mixed_6e": _FACTORISED,
    "Mixed_7a": _SHRINK_TO_8,
    "Mixed_7b": _EXPANDED,
    "Mixed_7c": _EXPANDED,
}
LAYERS = (*_STEM, *(f"{block}.{branch}" for block, branches in _BLOCKS.items() for branch in branches))

# the ways in which a damaged pickle fails
_FAILURES = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError)
_NORM = ("weight", "bias", "running_mean", "running_var")


def convert_official(
    path: str | Path, shapes: Mapping[str, torch.Size], classifier: tuple[int, int], epsilon: float
) -> dict[str, Tensor]:
    """The state dict of `InceptionFeatures` from pytorch-fid's file, batch normalisation multiplied in.

    `shapes` are those of our convolutions by name and in order, `classifier` that of the weights after them.
    """
    theirs = _read(path)
    expected: dict[str, tuple[int, ...]] = {"fc.weight": classifier, "fc.bias": classifier[:1]}
    for layer, shape in zip(LAYERS, shapes.values(), strict=True):
        expected |= {f"{layer}.conv.weight": tuple(shape)} | {f"{layer}.bn.{part}": (shape[0],) for part in _NORM}
    _check(path, theirs, expected)
    state = {"fc_weight": theirs["fc.weight"].float()}
    for name, layer in zip(shapes, LAYERS, strict=True):
        weight = theirs[f"{layer}.conv.weight"].double()
        gamma, beta, mean, var = (theirs[f"{layer}.bn.{part}"].double() for part in _NORM)
        scale = gamma * (var + epsilon).rsqrt()
        state[f"{name}.weight"] = (weight * scale[:, None, None, None]).float()
        state[f"{name}.bias"] = (beta - mean * scale).float()
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise ValueError(f"{path} gives infinite or NaN values for {name}; it is damaged, download it again")
    return state


def _read(path: str | Path) -> dict[str, Tensor]:
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


def _check(path: str | Path, theirs: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(expected.keys() - theirs.keys()), sorted(theirs.keys() - expected.keys())
    if missing or extra:
        raise ValueError(
            f"{path} lacks {len(missing)} tensors ({', '.join(missing[:3]) or 'none'}) "
            f"and has {len(extra)} unknown ones ({', '.join(extra[:3]) or 'none'}); "
            f"it is another network, use {OFFICIAL} of pytorch-fid"
        )
    for name, shape in expected.items():
        if theirs[name].shape != shape:
            raise ValueError(
                f"{name} in {path} has shape {tuple(theirs[name].shape)} but {shape} is expected; "
                f"it is another network, use {OFFICIAL} of pytorch-fid"
            )
