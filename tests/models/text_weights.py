"""Tiny language models with deterministic weights: configurations and state dicts as the official code writes them.

`text_golden.json` beside this file holds what the official code makes of them; `benchmarks/text_parity.py` wrote it.
"""

import math
from typing import Any

from torch import Tensor

from tests.golden import UNIT, tensor_input

WIDTH, MLP, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 64, 128, 2, 4, 2, 128
MASK, END = 127, 126
SHARP = 4.0  # standard deviation of the logits: sure of some tokens, in doubt about others
QUIET = 0.25  # of the mask's rows: it is never drawn, and what stands around it decides what is

LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "activation_type": "silu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": WIDTH,
    "embedding_dropout": 0.0,
    "embedding_size": VOCABULARY,
    "eos_token_id": END,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_device": "cpu",
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": MASK,
    "max_sequence_length": 512,
    "mlp_hidden_size": MLP,
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "n_layers": LAYERS,
    "pad_token_id": END,
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "use_cache": False,
    "vocab_size": VOCABULARY,
    "weight_tying": False,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "bos_token_id": END,
    "eos_token_id": END,
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": MLP,
    "mask_token_id": MASK,
    "max_position_embeddings": 512,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KEY_HEADS,
    "pad_token_id": END,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_cache": False,
    "vocab_size": VOCABULARY,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": LLADA,
    "illada": LLADA | {"n_kv_heads": KEY_HEADS, "weight_tying": True},
    "dream": DREAM,
}


def tensors(kind: str) -> dict[str, Tensor]:
    """The official state dict of one of `CONFIGS`, in float32."""
    shapes = dream_shapes() if kind == "dream" else llada_shapes(kind == "illada")
    state = {key: tensor_input(f"{kind}.{key}", shape, scale(key, shape)) for key, shape in shapes.items()}
    for key, tensor in state.items():
        if tensor.ndim == 1 and key.endswith("weight"):  # norms
            tensor += 1
    for tensor in state.values():
        if tensor.shape == (VOCABULARY, WIDTH):  # embedding and head
            tensor[MASK] *= QUIET
    return state


def llada_shapes(tied: bool) -> dict[str, tuple[int, ...]]:
    keys = WIDTH // HEADS * (KEY_HEADS if tied else HEADS)
    shapes: dict[str, tuple[int, ...]] = {"wte": (VOCABULARY, WIDTH), "ln_f": (WIDTH,)}
    for block in (f"blocks.{layer}" for layer in range(LAYERS)):
        shapes |= {f"{block}.attn_norm": (WIDTH,), f"{block}.ff_norm": (WIDTH,)}
        shapes |= {f"{block}.q_proj": (WIDTH, WIDTH), f"{block}.attn_out": (WIDTH, WIDTH)}
        shapes |= {f"{block}.k_proj": (keys, WIDTH), f"{block}.v_proj": (keys, WIDTH)}
        shapes |= {
            f"{block}.ff_proj": (MLP, WIDTH),
            f"{block}.up_proj": (MLP, WIDTH),
            f"{block}.ff_out": (WIDTH, MLP),
        }
    if not tied:
        shapes["ff_out"] = (VOCABULARY, WIDTH)
    return {f"model.transformer.{key}.weight": shape for key, shape in shapes.items()}


def dream_shapes() -> dict[str, tuple[int, ...]]:
    keys = WIDTH // HEADS * KEY_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        for part, rows in ("q", WIDTH), ("k", keys), ("v", keys):
            shapes[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = (rows, WIDTH)
            shapes[f"model.layers.{layer}.self_attn.{part}_proj.bias"] = (rows,)
        shapes[f"model.layers.{layer}.self_attn.o_proj.weight"] = (WIDTH, WIDTH)
        shapes[f"model.layers.{layer}.mlp.gate_proj.weight"] = (MLP, WIDTH)
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (MLP, WIDTH)
        shapes[f"model.layers.{layer}.mlp.down_proj.weight"] = (WIDTH, MLP)
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (WIDTH,)
        shapes[f"model.layers.{layer}.post_attention_layernorm.weight"] = (WIDTH,)
    return shapes | {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}


def scale(key: str, shape: tuple[int, ...]) -> float:
    """How wide the weights of a key are spread: positions must matter, and no layer may be without effect."""
    if len(shape) == 1:
        return UNIT * 0.2
    if key == "model.embed_tokens.weight":
        return UNIT
    gain = SHARP if shape == (VOCABULARY, WIDTH) else 2.0
    return UNIT * gain / math.sqrt(shape[1])


def text(name: str, batch: int, length: int) -> Tensor:
    """Token ids (B, P) that are neither mask nor end, by name."""
    return ((tensor_input(name, (batch, length), 1.0) + 0.5) * END).long().clamp(max=END - 1)
