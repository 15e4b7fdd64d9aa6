"""Official checkpoints of LLaDA, Dream and their relatives: names, sizes, and what their configurations say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from recap.models.text.config import TextConfig
from recap.models.text.descriptions import config_of_dream, config_of_llada

KEY = "model.layers.0.self_attn.q_proj.weight"
NEEDS = (
    "model.transformer.wte model.transformer.blocks model.transformer.ln_f config.d_model config.mask_token_id",
    "model.embed_tokens model.layers model.norm lm_head config.hidden_size config.mask_token_id",
)
HEAD_WIDTH = 128  # of all published ones

SIZES = {
    "llada-8b": TextConfig(),
    "illada-8b": TextConfig(
        kv_heads=8, hidden=14336, codes=155136, num_tokens=8192, mask_id=5, eos_id=1, tied=True
    ),
    "dream-7b": TextConfig(
        3584, 28, 28, 4, 18944, 152064, 131072, 151666, 151643, 1e6, 1e-6, qkv_bias=True, shift=True, rotary="model"
    ),
}  # fmt: skip
ALIASES = {
    "llada": "llada-8b", "llada-8b-base": "llada-8b", "llada-8b-instruct": "llada-8b", "llada-1.5": "llada-8b",
    "illada": "illada-8b", "dream": "dream-7b", "dream-v0-base-7b": "dream-7b", "dream-v0-instruct-7b": "dream-7b",
    "diffucoder": "dream-7b", "diffucoder-7b": "dream-7b",
}  # fmt: skip

OF_LLADA = {  # LLaDA's names for parts of a block, and ours
    "attn_norm": "input_layernorm", "q_proj": "self_attn.q_proj", "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj", "attn_out": "self_attn.o_proj", "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj", "up_proj": "mlp.up_proj", "ff_out": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {
    "model.transformer.wte": "model.embed_tokens", "model.transformer.ln_f": "model.norm",
    "model.transformer.ff_out": "lm_head",
}  # fmt: skip
BLOCK = re.compile(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.(weight|bias)")


def own_name(key: str) -> str:
    """The library's name of a tensor, from LLaDA's; other names stay."""
    if (found := BLOCK.fullmatch(key)) and found[2] in OF_LLADA:
        return f"model.layers.{found[1]}.{OF_LLADA[found[2]]}.{found[3]}"
    part, _, kind = key.rpartition(".")
    return f"{OUTSIDE[part]}.{kind}" if part in OUTSIDE else key


def clean(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {own_name(key): tensor for key, tensor in tensors.items()}


def infer(tensors: Mapping[str, Tensor], heads: int | None) -> TextConfig:
    """The sizes of a state dict; what it does not say (ids, theta) is that of the published model it is like."""
    codes, width = tensors["model.embed_tokens.weight"].shape
    head = width // heads if heads else HEAD_WIDTH
    shift, tied = "model.layers.0.self_attn.q_proj.bias" in tensors, "lm_head.weight" not in tensors
    like = SIZES["dream-7b" if shift else "illada-8b" if tied else "llada-8b"]
    layers = {int(key.split(".")[2]) for key in tensors if key.startswith("model.layers.")}
    if not max(like.mask_id, like.eos_id) < codes:
        raise ValueError(
            f"it has {codes} ids, which is no published size, and does not say which of them is the mask; "
            f"convert its folder, with the config.json in it"
        )
    return TextConfig(
        width=width, depth=len(layers), heads=width // head,
        kv_heads=tensors["model.layers.0.self_attn.k_proj.weight"].shape[0] // head,
        hidden=tensors["model.layers.0.mlp.gate_proj.weight"].shape[0], codes=codes, num_tokens=like.num_tokens,
        mask_id=like.mask_id, eos_id=like.eos_id, theta=like.theta, eps=like.eps,
        qkv_bias=shift, tied=tied, shift=shift,
        rotary=like.rotary,
    )  # fmt: skip


def published_config(entries: Mapping[str, Any]) -> TextConfig | None:
    """The sizes in a parsed `config.json` of Hugging Face's kind, if it is LLaDA's or Dream's."""
    readers = {"llada": config_of_llada, "dream": config_of_dream}
    read = readers.get(str(entries.get("model_type")).lower())
    return None if read is None else read(SimpleNamespace(config=SimpleNamespace(**entries)))  # type: ignore[arg-type]
