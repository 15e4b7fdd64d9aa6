"""The record of MaskGIT, in the form of AutoNAT."""

from __future__ import annotations

from dataclasses import replace

from recap.models.family import Family
from recap.models.maskgit.adapter import MaskGITAdapter
from recap.models.maskgit.config import MaskGITConfig
from recap.models.maskgit.net import MaskGIT
from recap.models.maskgit.official import NEEDS, SIZES, clean, infer
from recap.tokenizers import VQGANConfig

FAMILY = Family(
    name="maskgit",
    title="MaskGIT",
    config=MaskGITConfig,
    network=MaskGIT,
    adapter=MaskGITAdapter,
    draws="ids",
    conditional=True,
    sizes=SIZES,
    aliases={"autonat-l": "maskgit-large", "autonat-large": "maskgit-large", "maskgit": "maskgit-large"},
    tiny=lambda config: replace(config, width=64, heads=4, num_tokens=64, depth=4),
    preset="maskgit-r",
    tokenizer_config=lambda config: VQGANConfig(),
    key="mid_block.attn.qkv.weight",
    infer=infer,
    clean=clean,
    needs=(NEEDS,),
)

__all__ = ["FAMILY", "MaskGIT", "MaskGITAdapter", "MaskGITConfig"]
