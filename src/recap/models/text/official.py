"""Official checkpoints of LLaDA, Dream and their relatives: names, sizes, and what their configurations say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from recap.models.text.config import TextConfig
from recap.models.text.descriptions import config_of_dream, config_of_llada

KEY, LLADA_KEY = "model.layers.0.self_attn.q_proj.weight", "model.transformer.blocks.0.q_proj.weight"
NEEDS = (
    "model.transformer.wte model.transformer.blocks model.transformer.ln_f config.d_model config.mask_token_id",
    "model.embed_tokens model.layers model.norm lm_head config.hidden_size config.mask_token_id",
)

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
    """The published size that a state dict has: of other ones it does not say enough (ids, theta, heads)."""
    codes, width = tensors["model.embed_tokens.weight"].shape
    measured = {
        "width": width,
        "depth": len({key.split(".")[2] for key in tensors if key.startswith("model.layers.")}),
        "kv_width": tensors["model.layers.0.self_attn.k_proj.weight"].shape[0],
        "hidden": tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        "codes": codes,
        "qkv_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "tied": "lm_head.weight" not in tensors,
    }
    for size in SIZES.values():
        if heads in (None, size.heads) and all(getattr(size, name) == value for name, value in measured.items()):
            return size
    said = ", ".join(f"{name} {value}" for name, value in measured.items())
    raise ValueError(
        f"it has {said}, which is no published size ({', '.join(SIZES)}), and a file does not say which id is the "
        f"mask; convert its folder, with the config.json in it"
    )


def published_config(entries: Mapping[str, Any]) -> TextConfig | None:
    """The sizes in a parsed `config.json` of Hugging Face's kind, if it is LLaDA's or Dream's."""
    readers = {"llada": config_of_llada, "dream": config_of_dream}
    read = readers.get(str(entries.get("model_type")).lower())
    return None if read is None else read(SimpleNamespace(**entries), "it")
