"""Triton kernels for what stands between matrix products: one launch and one pass over memory each.

Only imported where there is a GPU to run them (or Triton's interpreter, to test them without one). All arithmetic is
float32, whatever the precision of what is read and written.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recap.core.noise import MIX, REMIX, STEP, PositionNoise, signed
from recap.models.layers import width_block

LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["per_image"])
def _add_norm(
    x, y, weight, bias, total, normed, per_image, x_stride, width, eps, AFFINE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    start = (row // per_image) * x_stride + (row % per_image) * width
    value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + row * width + at, mask=inside, other=0.0).to(tl.float32)
    value = value.to(total.dtype.element_ty)
    tl.store(total + row * width + at, value, mask=inside)
    value = value.to(tl.float32)
    mean = tl.sum(value, axis=0) / width
    centred = tl.where(inside, value - mean, 0.0)
    out = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps))
    if AFFINE:
        out = out * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
        out += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + at, out.to(normed.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y (B, M, D) and its layer norm; the rows of `x` may be a slice of longer images."""
    batch, rows, width = x.shape
    if x.stride(2) != 1 or x.stride(1) != width:
        x = x.contiguous()
    y = y.contiguous()
    total, normed = torch.empty_like(y), torch.empty_like(y)
    if total.numel():
        _add_norm[(batch * rows,)](
            x, y, weight, bias, total, normed, rows, x.stride(0), width, eps, AFFINE=True, **width_block(width)
        )
    return total, normed


@triton.jit(do_not_specialize=["rows", "per_image", "half"])
def _draw(
    logits, keys, first, ids, confidence, rows, per_image, half, width, scale, temperature,
    STEP: tl.constexpr, MIX: tl.constexpr, REMIX: tl.constexpr, BRANCHES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(logits + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if BRANCHES == 2:
        blank = tl.load(logits + (rows + row) * width + at, mask=inside, other=0.0).to(tl.float32)
        value = blank + scale * (value - blank)
    value = tl.where(inside, value, -float("inf"))
    highest = tl.max(value, axis=0)
    total = tl.sum(tl.where(inside, tl.exp(value - highest), 0.0), axis=0)
    weights = tl.where(inside, tl.exp((value - highest) / temperature), 0.0)
    # the numbers that PositionNoise.exponential gives for `width`
    upper = at < half
    z = (tl.where(upper, at, at - half) + tl.load(first + row)) * STEP + tl.load(keys + row // per_image)
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * MIX
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * REMIX
    z = z ^ ((z >> 31) & 0x1FFFFFFFF)
    bits = tl.where(upper, (z >> 32) & 0xFFFFFFFF, z & 0xFFFFFFFF)
    uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2**-32
    series = uniform * (1.0 + uniform * (0.5 + uniform * (1.0 / 3 + uniform * (0.25 + uniform * 0.2))))
    clock = tl.where(uniform < 0.03, series, -tl.log(1.0 - tl.minimum(uniform, 0.99999994)))
    chosen = tl.argmax(tl.where(inside, weights / clock, -1.0), axis=0)
    chosen = tl.minimum(chosen, width - 1)
    tl.store(ids + row, chosen.to(tl.int64))
    own = tl.sum(tl.where(at == chosen, value, 0.0), axis=0)
    tl.store(confidence + row, own - highest - tl.log(total))


def draw_ids(
    logits: Tensor, noise: PositionNoise, branches: int, scale: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Ids (B, n) from logits (branches * B, n, V) with their log-probabilities, by what `noise.exponential` is."""
    keys, first = noise.keys, noise.first.contiguous()
    batch, (count, width) = len(keys), logits.shape[1:]
    ids = torch.empty(batch, count, dtype=torch.int64, device=logits.device)
    confidence = torch.empty(batch, count, dtype=torch.float32, device=logits.device)
    if batch * count:
        _draw[(batch * count,)](
            logits.contiguous(), keys, first, ids, confidence, batch * count, count, (width + 1) // 2, width,
            float(scale), float(temperature),
            STEP=signed(STEP), MIX=signed(MIX), REMIX=signed(REMIX), BRANCHES=branches, **width_block(width),
        )  # fmt: skip
    return ids, confidence


FEW = 64  # queries up to which `attend` is the quicker one whatever they ask


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend(
    q, k, v, out, queries, keys, q_image, q_row, k_image, k_row, v_image, v_row, width, scale,
    HEADS: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, KEYS: tl.constexpr,
    RAGGED: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)  # all blocks of a head one after another: they read the same keys
    image = (place // (HEADS * BLOCKS)).to(tl.int64)
    head = (place // BLOCKS) % HEADS
    row = (place % BLOCKS) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    wide = at < width
    key = tl.arange(0, KEYS)
    asking = row < queries
    q_at = q + image * q_image + head * width + row * q_row
    query = tl.load(q_at + at, mask=asking & wide, other=0.0)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    k_at = k + image * k_image + head * width + key[:, None] * k_row
    v_at = v + image * v_image + head * width + key[:, None] * v_row
    if TAIL:  # what a head is wider than a power of two
        behind = BLOCK + tl.arange(0, TAIL)[None, :]
        more = behind < width
        tail_query = tl.load(q_at + behind, mask=asking & more, other=0.0)
        tail_mixed = tl.zeros([ROWS, TAIL], tl.float32)
    for part in range(PARTS):
        known = part * KEYS + key < keys
        there = known[:, None] & wide if RAGGED else wide
        k_part = tl.load(k_at + at, mask=there, other=0.0)
        v_part = tl.load(v_at + at, mask=there, other=0.0)
        score = tl.dot(query, tl.trans(k_part), input_precision="ieee")
        if TAIL:
            there = known[:, None] & more if RAGGED else more
            k_tail = tl.load(k_at + behind, mask=there, other=0.0)
            v_tail = tl.load(v_at + behind, mask=there, other=0.0)
            score = tl.dot(tail_query, tl.trans(k_tail), score, input_precision="ieee")
        score *= scale
        if RAGGED:
            score = tl.where(known[None, :], score, -float("inf"))
        peak = tl.maximum(highest, tl.max(score, axis=1))
        fade = tl.exp2(highest - peak)
        weight = tl.exp2(score - peak[:, None])
        total = total * fade + tl.sum(weight, axis=1)
        weight = weight.to(v_part.dtype)
        mixed = tl.dot(weight, v_part, mixed * fade[:, None], input_precision="ieee")
        if TAIL:
            tail_mixed = tl.dot(weight, v_tail, tail_mixed * fade[:, None], input_precision="ieee")
        highest = peak
        k_at += KEYS * k_row
        v_at += KEYS * v_row
    out_at = out + ((image * queries + row) * HEADS + head) * width
    tl.store(out_at + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=asking & wide)
    if TAIL:
        tl.store(out_at + behind, (tail_mixed / total[:, None]).to(out.dtype.element_ty), mask=asking & more)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of heads (B, H, M, Dh) over (B, H, L, Dh), in blocks that fit few rows and odd lengths.

    The heads of a row lie side by side in memory, as `split_heads` gives them.
    """
    images, heads, queries, width = q.shape
    keys = k.shape[2]
    for x in (q, k, v):
        if x.stride(3) != 1 or x.stride(1) != width:
            raise ValueError(f"heads lie {x.stride(1)} apart with steps of {x.stride(3)}; expected {width} and 1")
    out = torch.empty(images, queries, heads, width, dtype=q.dtype, device=q.device)
    rows = 16 if queries <= 16 else 32 if queries <= 32 else 64
    blocks, part = triton.cdiv(queries, rows), 32 if rows == 64 and keys % 64 else 64
    block = max(16, 1 << (width.bit_length() - 1))
    tail = width - block
    _attend[(images * heads * blocks,)](
        q, k, v, out, queries, keys,
        q.stride(0), q.stride(2), k.stride(0), k.stride(2), v.stride(0), v.stride(2), width, width**-0.5 * LOG2_E,
        HEADS=heads, BLOCKS=blocks, ROWS=rows, PARTS=triton.cdiv(keys, part), KEYS=part, RAGGED=keys % part != 0,
        BLOCK=block, TAIL=max(16, triton.next_power_of_2(tail)) if tail > 0 else 0, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.transpose(1, 2)  # (B, H, M, Dh)


@triton.jit(do_not_specialize=["per_image", "first"])
def _store(
    k, v, to_k, to_v, cache_rows, per_image, first, k_image, k_row, to_image, width,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    image = row // per_image
    at = tl.arange(0, BLOCK)
    inside = at < width
    place = first + row % per_image
    if SLOTS:
        place = tl.load(cache_rows + row)
    source = image * k_image + (row % per_image) * k_row + at
    target = image * to_image + place * width + at
    tl.store(to_k + target, tl.load(k + source, mask=inside), mask=inside)
    tl.store(to_v + target, tl.load(v + source, mask=inside), mask=inside)


def store(k: Tensor, v: Tensor, to_k: Tensor, to_v: Tensor, rows: int | Tensor) -> None:
    """Copy rows (B, M, D) of keys and values into a cache (B, L, D), from row `rows` on or to `rows` (B, M)."""
    images, count, width = k.shape
    if k.stride() != v.stride() or k.stride(2) != 1 or to_k.stride() != to_v.stride() or to_k.stride(1) != width:
        raise ValueError(f"strides {k.stride()}, {v.stride()} into {to_k.stride()}, {to_v.stride()}; expected pairs")
    scattered = isinstance(rows, Tensor)
    if images * count:
        _store[(images * count,)](
            k, v, to_k, to_v, rows.contiguous() if isinstance(rows, Tensor) else k, count, 0 if scattered else rows,
            k.stride(0), k.stride(1), to_k.stride(0), width, SLOTS=scattered, **width_block(width),
        )  # fmt: skip


@triton.jit
def _round(x, out, scales, width, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    value = tl.load(x + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if GELU:  # its tanh form
        value = value / (1.0 + tl.exp(-1.5957691216057308 * (value + 0.044715 * value * value * value)))
    scale = tl.maximum(tl.max(tl.abs(value), axis=0), 1e-12) / 448.0  # the largest that there is
    tl.store(out + row * width + at, (value / scale).to(out.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale)


def round_rows(x: Tensor, gelu: bool = False) -> tuple[Tensor, Tensor]:
    """Rows (R, w), or their GELU, in eight bits, and the scale of each (R, 1) that gives them back."""
    rows, width = x.shape
    x = x.contiguous()
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, device=x.device)
    block = triton.next_power_of_2(width)
    _round[(rows,)](x, out, scales, width, GELU=gelu, BLOCK=block, num_warps=max(1, min(8, block // 1024)))
    return out, scales


def available(device: torch.device | str) -> bool:
    """Whether these kernels run there: on CUDA, or anywhere under Triton's interpreter."""
    interpreted: Any = getattr(triton.knobs.runtime, "interpret", False) if hasattr(triton, "knobs") else False
    return torch.device(device).type == "cuda" or bool(interpreted)
