"""Triton kernels for what stands between matrix products: one launch and one pass over memory each.

Only imported where there is a GPU to run them (or Triton's interpreter, to test them without one). All arithmetic is
float32, whatever the precision of what is read and written.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recap.core.noise import MIX, REMIX, STEP, signed


def width_block(width: int) -> dict[str, int]:
    """How a program takes a row of `width` numbers."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 256))}


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


@triton.jit(do_not_specialize=["rows", "per_image", "first", "half"])
def _draw(
    logits, keys, ids, confidence, rows, per_image, first, half, width, scale, temperature,
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
    # the numbers that Noise.exponential gives for (per_image, width)
    number = (row % per_image) * width + at
    upper = number < half
    z = (tl.where(upper, number, number - half) + first) * STEP + tl.load(keys + row // per_image)
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
    logits: Tensor, keys: Tensor, first: int, branches: int, scale: float, temperature: float
) -> tuple[Tensor, Tensor]:
    """Ids (B, n) from logits (branches * B, n, V) with their log-probabilities.

    The noise is that of streams `keys` (B, 1) from number `first` on, as `Noise.exponential` would make it.
    """
    batch, (count, width) = len(keys), logits.shape[1:]
    ids = torch.empty(batch, count, dtype=torch.int64, device=logits.device)
    confidence = torch.empty(batch, count, dtype=torch.float32, device=logits.device)
    if batch * count:
        _draw[(batch * count,)](
            logits.contiguous(), keys, ids, confidence, batch * count, count, first, (count * width + 1) // 2, width,
            float(scale), float(temperature),
            STEP=signed(STEP), MIX=signed(MIX), REMIX=signed(REMIX), BRANCHES=branches, **width_block(width),
        )  # fmt: skip
    return ids, confidence


FEW = 16  # queries up to which `attend_few` is for


@triton.jit(do_not_specialize=["queries", "keys"])
def _attend_few(
    q, k, v, out, queries, keys, q_image, q_row, k_image, k_row, v_image, v_row, width, scale,
    HEADS: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    row = tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    key = tl.arange(0, KEYS)
    wide = at[None, :] < width
    asking = row[:, None] < queries
    q_at = q + image * q_image + head * width + row[:, None] * q_row + at[None, :]
    query = tl.load(q_at, mask=asking & wide, other=0.0)
    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK], tl.float32)
    for part in range(PARTS):
        here = part * KEYS + key
        there = (here < keys)[:, None] & wide
        k_part = tl.load(
            k + image * k_image + head * width + here[:, None] * k_row + at[None, :], mask=there, other=0.0
        )
        v_part = tl.load(
            v + image * v_image + head * width + here[:, None] * v_row + at[None, :], mask=there, other=0.0
        )
        score = tl.dot(query, tl.trans(k_part), input_precision="ieee") * scale
        score = tl.where((here < keys)[None, :], score, -float("inf"))
        peak = tl.maximum(highest, tl.max(score, axis=1))
        fade = tl.exp(highest - peak)
        weight = tl.exp(score - peak[:, None])
        total = total * fade + tl.sum(weight, axis=1)
        mixed = mixed * fade[:, None] + tl.dot(weight.to(v_part.dtype), v_part, input_precision="ieee")
        highest = peak
    mixed = mixed / total[:, None]
    out_at = out + ((image * queries + row[:, None]) * HEADS + head) * width + at[None, :]
    tl.store(out_at, mixed.to(out.dtype.element_ty), mask=asking & wide)


def attend_few(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of up to 16 rows (B, H, M, Dh) over many (B, H, L, Dh): keys and values are read once.

    The heads of a row lie side by side in memory, as `split_heads` gives them.
    """
    images, heads, queries, width = q.shape
    for x in (q, k, v):
        if x.stride(3) != 1 or x.stride(1) != width:
            raise ValueError(f"heads lie {x.stride(1)} apart with steps of {x.stride(3)}; expected {width} and 1")
    out = torch.empty(images, queries, heads, width, dtype=q.dtype, device=q.device)
    _attend_few[(images * heads,)](
        q, k, v, out, queries, k.shape[2],
        q.stride(0), q.stride(2), k.stride(0), k.stride(2), v.stride(0), v.stride(2), width, width**-0.5,
        HEADS=heads, ROWS=16, PARTS=triton.cdiv(k.shape[2], 64), KEYS=64,
        BLOCK=max(16, triton.next_power_of_2(width)), num_warps=4, num_stages=3,
    )  # fmt: skip
    return out.transpose(1, 2)  # (B, H, M, Dh)


@triton.jit(do_not_specialize=["per_image", "first"])
def _store(
    k, v, to_k, to_v, slots, per_image, first, k_image, k_row, to_image, width,
    SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    image = row // per_image
    at = tl.arange(0, BLOCK)
    inside = at < width
    place = first + row % per_image
    if SLOTS:
        place = tl.load(slots + row)
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


def available(device: torch.device | str) -> bool:
    """Whether these kernels run there: on CUDA, or anywhere under Triton's interpreter."""
    interpreted: Any = getattr(triton.knobs.runtime, "interpret", False) if hasattr(triton, "knobs") else False
    return torch.device(device).type == "cuda" or bool(interpreted)
