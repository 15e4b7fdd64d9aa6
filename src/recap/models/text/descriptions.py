"""Where the parts of LLaDA's and of Dream's networks are, in their authors' classes and in ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from recap.models.described import Description, Gated, Rotary
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
    own: Any = getattr(net, "config", None)
    if isinstance(own, TextConfig):
        return own, DREAM
    llada, owner = hasattr(getattr(net, "model", None), "transformer"), f"config of {type(net).__name__}"
    return (config_of_llada(own, owner), LLADA) if llada else (config_of_dream(own, owner), DREAM)


def config_of_llada(entries: object, owner: str) -> TextConfig:
    """The sizes in the configuration of a `LLaDAModelLM`; what this library does not compute is refused."""
    read = Entries(entries, owner)
    read.expect(
        block_type="llama", layer_norm_type="rms", activation_type="silu", rope=True, alibi=False,
        attention_layer_norm=False, input_emb_norm=False, scale_logits=False, include_bias=False,
        multi_query_attention=False, block_group_size=1,
    )  # fmt: skip
    width, heads = read("d_model"), read("n_heads")
    return TextConfig(
        width=width, depth=read("n_layers"), heads=heads, kv_heads=read("n_kv_heads", heads),
        hidden=read("mlp_hidden_size", 4 * width), codes=read("embedding_size", None) or read("vocab_size"),
        num_tokens=read("max_sequence_length"), mask_id=read("mask_token_id"), eos_id=read("eos_token_id"),
        theta=float(read("rope_theta")), eps=float(read("rms_norm_eps")),
        qkv_bias=bool(read("include_qkv_bias", False)), tied=bool(read("weight_tying")),
        rotary="float32" if read("rope_full_precision", True) else "model",
    )  # fmt: skip


def config_of_dream(entries: object, owner: str) -> TextConfig:
    """The sizes in the configuration of a `DreamModel`, whose rows predict the position behind them."""
    read = Entries(entries, owner)
    read.expect(hidden_act="silu", use_sliding_window=False)
    scaling = read("rope_scaling", None) or {}
    if (kind := scaling.get("rope_type", scaling.get("type", "default"))) != "default":
        raise ValueError(f"{owner} scales its rotary positions ({kind}); only plain ones are known")
    theta = read("rope_theta", None) or read("rope_parameters")["rope_theta"]
    return TextConfig(
        width=read("hidden_size"), depth=read("num_hidden_layers"), heads=read("num_attention_heads"),
        kv_heads=read("num_key_value_heads"), hidden=read("intermediate_size"), codes=read("vocab_size"),
        num_tokens=read("max_position_embeddings"), mask_id=read("mask_token_id"), eos_id=read("eos_token_id"),
        theta=float(theta), eps=float(read("rms_norm_eps")), qkv_bias=True,
        tied=bool(read("tie_word_embeddings", False)), shift=True, rotary="model",
    )  # fmt: skip


NEEDED = object()


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a configuration that others have written; None counts as left out."""

    entries: object
    owner: str  # for people

    def __call__(self, name: str, usual: Any = NEEDED) -> Any:
        value = getattr(self.entries, name, None)
        if value is None and usual is NEEDED:
            raise ValueError(f"{self.owner} has no {name!r}; set it to what the model was trained with")
        return usual if value is None else value

    def expect(self, **expected: Any) -> None:
        """Refuse other values than these."""
        for name, value in expected.items():
            given = self(name, value)
            given = getattr(given, "value", given)  # an enumeration
            if given != value:
                raise ValueError(
                    f"{self.owner} has {name}={given!r}, but only {value!r} is known here; "
                    f"write a Description or an adapter of your own (docs/plug-in.md)"
                )
