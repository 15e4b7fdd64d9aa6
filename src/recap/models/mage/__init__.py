"""The record of MAGE."""

from __future__ import annotations

from dataclasses import replace

from recap.models.family import Family
from recap.models.mage.adapter import MAGEAdapter
from recap.models.mage.config import MAGEConfig
from recap.models.mage.net import MAGE
from recap.models.mage.official import NEEDS, SIZES, infer
from recap.tokenizers.layers import tiny_tokenizer


def tiny(config: MAGEConfig) -> MAGEConfig:
    vqgan = None if config.vqgan is None else tiny_tokenizer(config.vqgan)
    small = replace(config, encoder_depth=3, decoder_depth=2, decoder_heads=4, vqgan=vqgan)
    return replace(small, width=64, heads=4, num_tokens=64)


FAMILY = Family(
    name="mage",
    title="MAGE",
    config=MAGEConfig,
    network=MAGE,
    adapter=MAGEAdapter,
    draws="ids",
    conditional=False,
    sizes=SIZES,
    tiny=tiny,
    preset="mage",
    tokenizer_config=lambda config: config.vqgan,
    tokenizer_inside=True,
    key="decoder_blocks.0.attn.qkv.weight",
    infer=infer,
    needs=(NEEDS,),
)

__all__ = ["FAMILY", "MAGE", "MAGEAdapter", "MAGEConfig"]
