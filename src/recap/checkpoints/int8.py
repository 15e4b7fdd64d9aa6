"""Weights in a quarter of the bytes: int8 rows with a scale each, restored to float32 when read.

A large tensor of two or more dimensions is kept as int8 under its own key, and the scale of every row in
float32 under `<key>::scale`; row r is `scale[r] * int8[r]`. Rows run along the first dimension that is longer
than one: the outputs of a matrix or convolution, the entries of an embedding, the places of a (1, N, D) table
of positions. Everything else is small, and kept in float16 where that loses next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from recap.checkpoints.safe_files import CheckpointError

SCALE = "::scale"
HOW_TO_READ = (  # in the metadata of a file
    f"int8: row r of KEY is KEY{SCALE}[r] * KEY[r], in float32; rows run along the first dimension of KEY that is "
    f"longer than 1. Tensors without KEY{SCALE} are values as they are. recap.load_pretrained restores them all."
)
LEAST = 4096  # values that make a tensor worth it
STEPS = 127


def compact(tensors: Mapping[str, Tensor], scales: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The same weights in the compact form; a network without large tensors stays as it is.

    `scales` are those of tensors that lie on their grid already (see `recap.training.rounding`).
    """
    small: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        scale = scales[key] if scales and key in scales else row_scales(tensor)
        if scale is None:
            small[key] = shortened(tensor)
            continue
        steps = tensor.double() / scale.double().clamp_min(torch.finfo(torch.float32).tiny).view(scale_shape(tensor))
        small[key] = steps.round().clamp(-STEPS, STEPS).to(torch.int8).contiguous()
        small[key + SCALE] = scale
    return small if any(key.endswith(SCALE) for key in small) else dict(tensors)


def restore(tensors: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Undo `compact`; tensors that were never made compact come back untouched.

    Of tensors without memory, shapes are checked and no values.
    """
    scales = {key.removesuffix(SCALE): value for key, value in tensors.items() if key.endswith(SCALE)}
    whole = {key: tensor for key, tensor in tensors.items() if not key.endswith(SCALE)}
    if lost := [key for key in scales if key not in whole]:
        raise CheckpointError(
            f"{source} has {lost[0]}{SCALE} but no tensor that belongs to it; save or copy the model again"
        )
    for key, tensor in whole.items():
        if key in scales:
            scale, shape = scales[key], scale_shape(tensor)
            form = (tensor.dtype, tensor.ndim >= 2, scale.dtype, scale.shape)
            if form != (torch.int8, True, torch.float32, (math.prod(shape),)) or not scale.numel():
                raise CheckpointError(
                    f"{source} has {key} {tuple(tensor.shape)} of {tensor.dtype} and {key}{SCALE} "
                    f"{tuple(scale.shape)} of {scale.dtype}; expected int8 of two dimensions or more, and one "
                    f"float32 for each of its rows: save or copy the model again"
                )
            if not scale.is_meta and not bool((scale.isfinite() & (scale >= 0)).all()):
                raise CheckpointError(
                    f"{source} has {key}{SCALE} with values that are no scales; copy the model again"
                )
            # arithmetic without memory would import torch's compiler, for seconds
            blank = torch.empty(tensor.shape, device="meta") if tensor.is_meta else None
            whole[key] = tensor.float() * scale.view(shape) if blank is None else blank
        elif tensor.dtype == torch.int8:
            raise CheckpointError(
                f"{source} has {key} in compact form but not its {key}{SCALE}; save or copy the model again"
            )
        elif scales and tensor.is_floating_point():
            whole[key] = torch.empty(tensor.shape, device="meta") if tensor.is_meta else tensor.float()
    return whole


def row_scales(tensor: Tensor) -> Tensor | None:
    """One float32 scale a row, or None where int8 would not pay or not hold the values."""
    if not tensor.is_floating_point() or tensor.ndim < 2 or tensor.numel() < LEAST:
        return None
    shape = scale_shape(tensor)
    most = tensor.double().abs().transpose(0, shape.index(max(shape))).flatten(1).amax(1)  # (rows,)
    scale = (most / STEPS).float()
    holds = scale.isfinite() & ((scale >= torch.finfo(torch.float32).tiny) | (most == 0))
    return scale if bool(holds.all()) else None


def scale_shape(tensor: Tensor) -> list[int]:
    """The shape of what multiplies the rows of a tensor, which run along the first dimension longer than one."""
    along = next((dim for dim, size in enumerate(tensor.shape) if size > 1), 0)
    return [size if dim == along else 1 for dim, size in enumerate(tensor.shape)]


def shortened(tensor: Tensor) -> Tensor:
    """In float16 if every value keeps its eleven bits there, else in float32; integers as they are."""
    if not tensor.is_floating_point():
        return tensor
    single = tensor.float()
    half = single.half()
    safe = (half.float() - single).abs() <= single.abs() * 2.0**-11  # false for what is no number
    return half if bool(safe.all()) else single
