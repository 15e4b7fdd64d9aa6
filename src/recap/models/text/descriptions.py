"""Where the parts of LLaDA's and of Dream's networks are, in their authors' classes and in ours."""

from __future__ import annotations

from typing import Any

from torch import nn

from recap.models.described import Description, Gated, Rotary
from recap.models.family import find
from recap.models.text.config import TextConfig

LLADA = "model.transformer.blocks"  # by which the authors' objects are told apart
DREAM = "model.layers"


def description_of(config: TextConfig, blocks: str) -> Description:
    """The description of a network of this configuration in LLaDA's layout or in Dream's."""
    rotary = Rotary(config.theta, precision=config.rotary)
    of_all: dict[str, Any] = {
        "num_tokens": config.num_tokens, "mask_id": config.mask_id, "codes": config.codes, "heads": config.heads,
        "kv_heads": config.kv_heads, "rotary": rotary, "blocks": blocks,
    }  # fmt: skip
    if blocks == LLADA:
        head = "model.transformer.wte" if config.tied else "model.transformer.ff_out"
        return Description(
            **of_all, words="model.transformer.wte", norm="model.transformer.ln_f", logits=head, norm1="attn_norm",
            q="q_proj", k="k_proj", v="v_proj", out="attn_out", norm2="ff_norm",
            mlp=Gated("ff_proj", "up_proj", "ff_out"),
        )  # fmt: skip
    attn, mlp = "self_attn", "mlp"
    return Description(
        **of_all, words="model.embed_tokens", norm="model.norm",
        logits="model.embed_tokens" if config.tied else "lm_head", norm1="input_layernorm",
        q=f"{attn}.q_proj", k=f"{attn}.k_proj", v=f"{attn}.v_proj", out=f"{attn}.o_proj",
        norm2="post_attention_layernorm", mlp=Gated(f"{mlp}.gate_proj", f"{mlp}.up_proj", f"{mlp}.down_proj"),
    )  # fmt: skip


def described_config(net: nn.Module) -> tuple[TextConfig, str]:
    """The configuration of a network of ours, of LLaDA's class or of Dream's, and where its blocks are."""
    if isinstance(own := getattr(net, "config", None), TextConfig):
        return own, DREAM
    llada = hasattr(getattr(net, "model", None), "transformer")
    return (config_of_llada(net), LLADA) if llada else (config_of_dream(net), DREAM)


def config_of_llada(net: nn.Module) -> TextConfig:
    """The sizes in the configuration of a `LLaDAModelLM`; what this library does not compute is refused."""
    read = reader(net)
    expected = {
        "block_type": "llama", "layer_norm_type": "rms", "activation_type": "silu", "rope": True, "alibi": False,
        "attention_layer_norm": False, "input_emb_norm": False, "scale_logits": False, "include_bias": False,
    }  # fmt: skip
    check_known(net, expected)
    heads = read("n_heads")
    rows = getattr(net.config, "embedding_size", None) or read("vocab_size")
    return TextConfig(
        width=read("d_model"), depth=read("n_layers"), heads=heads,
        kv_heads=getattr(net.config, "n_kv_heads", None) or heads,
        hidden=getattr(net.config, "mlp_hidden_size", None) or 4 * read("d_model"), codes=rows,
        num_tokens=read("max_sequence_length"), mask_id=read("mask_token_id"), eos_id=read("eos_token_id"),
        theta=float(read("rope_theta")), eps=float(read("rms_norm_eps")),
        qkv_bias=bool(getattr(net.config, "include_qkv_bias", False)), tied=bool(read("weight_tying")),
        rotary="float32" if getattr(net.config, "rope_full_precision", True) else "model",
    )  # fmt: skip


def config_of_dream(net: nn.Module) -> TextConfig:
    """The sizes in the configuration of a `DreamModel`, whose rows predict the position behind them."""
    read = reader(net)
    check_known(net, {"hidden_act": "silu"})
    if scaling := getattr(net.config, "rope_scaling", None):
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind != "default":
            raise ValueError(f"{type(net).__name__} scales its rotary positions ({kind}); only plain ones are known")
    theta = getattr(net.config, "rope_theta", None) or read("rope_parameters")["rope_theta"]
    return TextConfig(
        width=read("hidden_size"), depth=read("num_hidden_layers"), heads=read("num_attention_heads"),
        kv_heads=read("num_key_value_heads"), hidden=read("intermediate_size"), codes=read("vocab_size"),
        num_tokens=read("max_position_embeddings"), mask_id=read("mask_token_id"), eos_id=read("eos_token_id"),
        theta=float(theta), eps=float(read("rms_norm_eps")), qkv_bias=True, tied=bool(read("tie_word_embeddings")),
        shift=True, rotary="model",
    )  # fmt: skip


def reader(net: nn.Module) -> Any:
    """What reads an entry of a network's configuration, or says that it is missing."""

    def read(name: str) -> Any:
        value = find(net, f"config.{name}", "a language model")
        if value is None:
            raise ValueError(
                f"config.{name} of {type(net).__name__} is None; set it to what the model was trained with"
            )
        return value

    return read


def check_known(net: nn.Module, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        given = getattr(getattr(net, "config", None), name, value)
        given = getattr(given, "value", given)  # an enumeration
        if given != value:
            raise ValueError(
                f"config.{name} of {type(net).__name__} is {given!r}, but only {value!r} is known here; "
                f"write a Description or an adapter of your own (docs/plug-in.md)"
            )
