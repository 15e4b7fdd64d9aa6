"""The record of MAR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recap.core.protocols import Head
from recap.models.family import Family
from recap.models.mar.adapter import MARAdapter
from recap.models.mar.config import MARConfig
from recap.models.mar.net import MAR
from recap.models.mar.official import NEEDS, SIZES, infer
from recap.tokenizers import KLVAEConfig


def tiny(config: MARConfig) -> MARConfig:
    depths: dict[str, Any] = {"encoder_depth": 3, "decoder_depth": 3, "head_depth": 2, "head_width": 96}
    return replace(config, width=64, heads=4, num_tokens=64, buffer=8, **depths)


def fused_head(head: Head) -> Head | None:
    from recap.models.mar import fused  # needs Triton, which comes with torch where there is a GPU

    return fused.fused_head(head)


FAMILY = Family(
    name="mar",
    title="MAR",
    config=MARConfig,
    network=MAR,
    adapter=MARAdapter,
    draws="latents",
    conditional=True,
    sizes=SIZES,
    tiny=tiny,
    preset="mar-large",
    tokenizer_config=lambda config: KLVAEConfig(),
    key="diffloss.net.input_proj.weight",
    infer=infer,
    needs=(NEEDS,),
    fused_head=fused_head,
)

__all__ = ["FAMILY", "MAR", "MARAdapter", "MARConfig"]
