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


def compiled(kernel: Any, dtype: str, constants: dict[str, Any], **types: str) -> None:
    """Compile with pointers of `dtype`, where `types` says nothing else; names in `constants` are constants."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, dtype) for name in names}
    source = ASTSource(kernel, signature=signature, constexprs={(names.index(k),): v for k, v in constants.items()})
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def integers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


def main() -> None:
    eps = {"eps": "fp32"}
    for dtype in ("*bf16", "*fp32"):
        compiled(
            kernels._add_norm,
            dtype,
            {"AFFINE": True, "BLOCK": 1024},
            **integers("per_image", "x_stride", "width"),
            **eps,
        )
        compiled(
            kernels._draw,
            dtype,
            {**HASH, "BRANCHES": 2, "BLOCK": 1024},
            keys="*i64",
            ids="*i64",
            confidence="*fp32",
            scale="fp32",
            temperature="fp32",
            **integers("rows", "per_image", "first", "half", "width"),
        )
        for rows, keys, ragged, tail in ((16, 64, False, 0), (64, 32, True, 16)):
            compiled(
                kernels._attend,
                dtype,
                {"HEADS": 16, "BLOCKS": 2, "ROWS": rows, "PARTS": 5, "KEYS": keys, "RAGGED": ragged}
                | {"BLOCK": 64, "TAIL": tail},
                scale="fp32",
                **integers("queries", "keys", "q_image", "q_row", "k_image", "k_row", "v_image", "v_row", "width"),
            )
        compiled(
            kernels._round, dtype, {"GELU": True, "BLOCK": 4096}, out="*fp8e4nv", scales="*fp32", **integers("width")
        )
        for scattered in (True, False):
            compiled(
                kernels._store,
                dtype,
                {"SLOTS": scattered, "BLOCK": 1024},
                cache_rows="*i64",
                **integers("per_image", "first", "k_image", "k_row", "to_image", "width"),
            )
        for first in (True, False):
            compiled(
                mar_kernels._gate_norm,
                dtype,
                {"AFFINE": first, "BLOCK": 2048},
                **integers("row_stride", "gate_at", "shift_at", "width"),
                **eps,
            )
            compiled(
                mar_kernels._reverse_step,
                dtype,
                {
                    "BRANCHES": 2,
                    "CHANNELS": 16,
                    "FIRST": first,
                    "LAST": False,
                    "NOISE": True,
                    "BOUND": True,
                    "BLOCK": 2048,
                },
                **dict.fromkeys(("x", "numbers", "guide", "noise"), "*fp32"),
                **integers("tokens", "row_stride", "per_image", "noise_stride", "step", "width"),
                bound="fp32",
                **eps,
            )
            compiled(
                mar_kernels._linear,
                dtype,
                {"SILU": first, "ROWS": 32, "TILE": 16, "PARTS": 5, "PART": 256},
                **integers("rows", "width", "outputs"),
            )
    print("all kernels compile")


if __name__ == "__main__":
    main()
