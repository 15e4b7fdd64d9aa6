"""Compile every kernel for an H100 or H200, which needs no GPU; run by a test in a process of its own.

The interpreter runs what the compiler may refuse.
"""

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from recap.core.noise import MIX, REMIX, STEP, signed
from recap.engine import kernels
from recap.models.mar import kernels as mar_kernels

HASH = {"STEP": signed(STEP), "MIX": signed(MIX), "REMIX": signed(REMIX)}
FLOATS = ("eps", "scale", "temperature", "bound")


def compiled(kernel: Any, dtype: str, pointers: str, constants: dict[str, Any], **types: str) -> None:
    """Compile with `pointers` of `dtype`, where `types` says nothing else; names in `constants` are constants."""
    names = kernel.arg_names
    usual = dict.fromkeys(names, "i32") | dict.fromkeys(FLOATS, "fp32") | dict.fromkeys(pointers.split(), dtype)
    signature = {name: "constexpr" if name in constants else types.get(name, usual[name]) for name in names}
    source = ASTSource(kernel, signature=signature, constexprs={(names.index(k),): v for k, v in constants.items()})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def main() -> None:
    ids = {"keys": "*i64", "first": "*i64", "ids": "*i64", "confidence": "*fp32"}
    attention = {"HEADS": 16, "BLOCKS": 2, "PARTS": 5, "BLOCK": 64}
    process = dict.fromkeys(("x", "numbers", "guide", "noise"), "*fp32")
    step = {"BRANCHES": 2, "CHANNELS": 16, "LAST": False, "NOISE": True, "BOUND": True, "BLOCK": 2048}
    for dtype in ("*bf16", "*fp32"):
        compiled(kernels._add_norm, dtype, "x y weight bias total normed", {"AFFINE": True, "BLOCK": 1024})
        compiled(kernels._draw, dtype, "logits", {**HASH, "BRANCHES": 2, "BLOCK": 1024}, **ids)
        for rows, keys, ragged, tail in ((16, 64, False, 0), (64, 32, True, 16)):
            shape = {"ROWS": rows, "KEYS": keys, "RAGGED": ragged, "TAIL": tail}
            compiled(kernels._attend, dtype, "q k v out", attention | shape)
        compiled(kernels._round, dtype, "x", {"GELU": True, "BLOCK": 4096}, out="*fp8e4nv", scales="*fp32")
        for choice in (True, False):
            stored = {"SLOTS": choice, "BLOCK": 1024}
            compiled(kernels._store, dtype, "k v to_k to_v", stored, cache_rows="*i64")
            norm = {"AFFINE": choice, "BLOCK": 2048}
            compiled(mar_kernels._gate_norm, dtype, "h update modulation weight bias out", norm)
            rest = "out inputs first modulation weight bias h u"
            compiled(mar_kernels._reverse_step, dtype, rest, {**step, "FIRST": choice}, **process)
            tiles = {"SILU": choice, "ROWS": 32, "TILE": 16, "PARTS": 5, "PART": 256}
            compiled(mar_kernels._linear, dtype, "x matrix offset out", tiles)
    print("all kernels compile")


if __name__ == "__main__":
    main()
