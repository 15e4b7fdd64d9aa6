"""Triton kernels for the diffusion head: what stands between its matrix products, and for few rows these too."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from recap.models.layers import width_block


@triton.jit
def _gate_norm(
    h, update, modulation, weight, bias, out, row_stride, gate_at, shift_at, width, eps,
    AFFINE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    own = modulation + row * row_stride + at
    value = tl.load(h + row * width + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(own + gate_at, mask=inside, other=0.0).to(tl.float32)
    value += gate * tl.load(update + row * width + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(h + row * width + at, value.to(h.dtype.element_ty), mask=inside)
    mean = tl.sum(value, axis=0) / width
    centred = tl.where(inside, value - mean, 0.0)
    normed = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps))
    if AFFINE:
        normed = normed * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(own + shift_at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(own + shift_at + width, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (normed * (1.0 + scale) + shift).to(out.dtype.element_ty), mask=inside)


def gate_norm_(
    h: Tensor,
    update: Tensor,
    modulation: Tensor,
    gate_at: int,
    shift_at: int,
    norm: tuple[Tensor, Tensor] | None,
    eps: float,
    out: Tensor,
) -> Tensor:
    """h += gate * update, in place, then the layer norm of it, scaled and shifted; all (R, w).

    `modulation` (R, ...) holds shift and scale of the next norm at `shift_at` and the gate at `gate_at`.
    """
    rows, width = h.shape
    weight, bias = norm if norm is not None else (h, h)
    _gate_norm[(rows,)](
        h, update, modulation, weight, bias, out, modulation.stride(0), gate_at, shift_at, width, eps,
        AFFINE=norm is not None, **width_block(width),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["tokens", "per_image", "noise_stride", "step"])
def _reverse_step(x, out, numbers, guide, noise, inputs, first, modulation, weight, bias, h, u,
          tokens, row_stride, per_image, noise_stride, step, width, eps, bound,
          BRANCHES: tl.constexpr, CHANNELS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
          NOISE: tl.constexpr, BOUND: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    image = token // per_image
    at = tl.arange(0, BLOCK)
    inside = at < width
    scale = tl.load(guide)
    temperature = tl.load(guide + 1)
    a = tl.load(numbers + step * 6)
    b = tl.load(numbers + step * 6 + 1)
    c = tl.load(numbers + step * 6 + 2)
    d = tl.load(numbers + step * 6 + 3)
    high = tl.load(numbers + step * 6 + 4)
    low = tl.load(numbers + step * 6 + 5)
    hidden = tl.load(first + at, mask=inside, other=0.0).to(tl.float32)
    draws = noise + image * noise_stride + (token % per_image) * CHANNELS
    for channel in tl.static_range(CHANNELS):
        if FIRST:
            value = tl.load(draws + channel)
        else:
            value = tl.load(x + token * CHANNELS + channel)
            eps_c = tl.load(out + token * 2 * CHANNELS + channel).to(tl.float32)
            share = (tl.load(out + token * 2 * CHANNELS + CHANNELS + channel).to(tl.float32) + 1.0) * 0.5
            if BRANCHES == 2:
                eps_u = tl.load(out + (tokens + token) * 2 * CHANNELS + channel).to(tl.float32)
                eps_c = eps_u + scale * (eps_c - eps_u)
            clean = a * value - b * eps_c
            if BOUND:
                clean = tl.minimum(tl.maximum(clean, -bound), bound)
            value = c * clean + d * value
            if NOISE:
                spread = tl.exp((share * high + (1.0 - share) * low) * 0.5)
                value += spread * temperature * tl.load(draws + channel)
        tl.store(x + token * CHANNELS + channel, value)
        if not LAST:
            rounded = value.to(h.dtype.element_ty).to(tl.float32)
            hidden += rounded * tl.load(inputs + channel * width + at, mask=inside, other=0.0).to(tl.float32)
    if not LAST:
        mean = tl.sum(tl.where(inside, hidden, 0.0), axis=0) / width
        centred = tl.where(inside, hidden - mean, 0.0)
        normed = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps))
        normed = normed * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        normed += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
        for branch in tl.static_range(BRANCHES):
            row = branch * tokens + token
            own = modulation + row * row_stride + at
            moved = tl.load(own, mask=inside, other=0.0).to(tl.float32)
            scaled = tl.load(own + width, mask=inside, other=0.0).to(tl.float32)
            tl.store(h + row * width + at, hidden.to(h.dtype.element_ty), mask=inside)
            result = normed * (1.0 + scaled) + moved
            tl.store(u + row * width + at, result.to(u.dtype.element_ty), mask=inside)


def reverse_step(
    x: Tensor,
    out: Tensor | None,
    step: int,
    numbers: Tensor,
    guide: Tensor,
    noise: Tensor | None,
    entry: tuple[Tensor, Tensor, Tensor, Tensor, float],
    modulation: Tensor | None,
    h: Tensor,
    u: Tensor,
    branches: int,
    bound: float | None,
) -> None:
    """One reverse step of the diffusion, and the way into the network for the next; `x` (T, C) is renewed.

    out (branches * T, 2C): what the network said last, None before the first step. noise: the draws (B, n, C) that
    are added, a slice of all, or None in the last step. modulation: that of the next step, None after the last.
    `entry` has the input layer transposed (C, w), its bias, and weight, bias and epsilon of the first norm.
    """
    inputs, first, weight, bias, eps = entry
    tokens, channels = x.shape
    draws = x if noise is None else noise
    _reverse_step[(tokens,)](
        x, x if out is None else out, numbers, guide, draws, inputs, first,
        h if modulation is None else modulation, weight, bias, h, u,
        tokens, 0 if modulation is None else modulation.stride(0),
        tokens if noise is None else noise.shape[1], 0 if noise is None else noise.stride(0),
        step, inputs.shape[1], eps, 0.0 if bound is None else bound,
        BRANCHES=branches, CHANNELS=channels, FIRST=out is None, LAST=modulation is None,
        NOISE=noise is not None, BOUND=bound is not None, **width_block(inputs.shape[1]),
    )  # fmt: skip


FEW = 64  # rows up to which `linear` is the quicker one for every layer
SOME = 384  # and for those with SiLU behind them


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x, matrix, offset, out, rows, width, outputs,
    SILU: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)[None, :]
    result = tl.zeros([ROWS, TILE], tl.float32)
    for part in range(PARTS):
        at = part * PART + tl.arange(0, PART)
        value = tl.load(x + row * width + at[None, :], mask=(row < rows) & (at < width)[None, :], other=0.0)
        weights = tl.load(
            matrix + column * width + at[:, None], mask=(at < width)[:, None] & (column < outputs), other=0.0
        )
        result = tl.dot(value, weights, result, input_precision="ieee")
    result += tl.load(offset + column, mask=column < outputs, other=0.0).to(tl.float32)
    if SILU:
        result = result / (1.0 + tl.exp(-result))
    target = out + row * outputs + column
    tl.store(target, result.to(out.dtype.element_ty), mask=(row < rows) & (column < outputs))


def linear(x: Tensor, matrix: Tensor, offset: Tensor, silu: bool) -> Tensor:
    """A linear layer of `x` (R, w), and SiLU, in one launch.

    With few rows the weights are all there is to read: narrow tiles spread them over the whole device.
    """
    rows, width = x.shape
    outputs = len(matrix)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if rows <= FEW:
        tiles = {"ROWS": 16 if rows <= 16 else 32, "TILE": 16, "PART": 256, "num_warps": 4, "num_stages": 3}
    else:
        tiles = {"ROWS": 64, "TILE": 64, "PART": 64, "num_warps": 8, "num_stages": 4}
    _linear[(triton.cdiv(outputs, tiles["TILE"]), triton.cdiv(rows, tiles["ROWS"]))](
        x, matrix, offset, out, rows, width, outputs,
        SILU=silu, PARTS=triton.cdiv(width, tiles["PART"]), **tiles,
    )  # fmt: skip
    return out
