"""Networks of text, and the record of bidirectional language models in Llama's layout."""

from __future__ import annotations

from dataclasses import replace

from recap.models.family import Family
from recap.models.text.adapter import TextAdapter
from recap.models.text.config import TextConfig
from recap.models.text.net import TextModel
from recap.models.text.official import ALIASES, KEY, LLADA_KEY, NEEDS, SIZES, clean, infer, published_config

FAMILY = Family(
    name="text",
    title="LLaDA and Dream",
    config=TextConfig,
    network=TextModel,
    adapter=TextAdapter,
    draws="ids",
    conditional=True,
    modality="text",
    sizes=SIZES,
    aliases=ALIASES,
    tiny=lambda config: replace(
        config, width=64, heads=4, kv_heads=4 * config.kv_heads // config.heads or 1, hidden=96, depth=2, codes=128,
        num_tokens=512, mask_id=127, eos_id=0,
    ),
    preset="text",
    key=KEY,
    official_key=LLADA_KEY,
    infer=infer,
    clean=clean,
    published=published_config,
    published_preset=lambda config: "dream" if config.shift else "llada",
    needs=NEEDS,
)  # fmt: skip

__all__ = ["FAMILY", "TextAdapter", "TextConfig", "TextModel"]
