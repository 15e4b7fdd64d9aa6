"""AutoNAT's U-ViT class: what is asked of an instance, and its sizes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recap.models.family import Tensors, find, known_heads
from recap.models.maskgit.config import MaskGITConfig
from recap.tokenizers.layers import depth

SIZES = {"maskgit-large": MaskGITConfig()}

NEEDS = (
    "token_emb.word_embeddings.num_embeddings token_emb.position_embeddings token_emb.LayerNorm "
    "context_embed.word_embeddings context_embed.position_embeddings context_embed.LayerNorm "
    "in_blocks mid_block out_blocks norm mlm_layer.bias codebook_size"
)


def sizes_of(net: Any) -> MaskGITConfig:
    words = net.token_emb.word_embeddings.num_embeddings
    if words != net.codebook_size + 1:
        raise ValueError(
            f"token_emb.word_embeddings has {words} words for a codebook_size of {net.codebook_size}; "
            f"expected one more, for the mask"
        )
    for i, block in enumerate(net.out_blocks):
        if find(block, "skip_linear", f"MaskGIT, for block {i} of out_blocks,") is None:
            raise ValueError(f"out_blocks[{i}].skip_linear is None; a U-ViT with long skips is expected")
    return infer(net.state_dict(), find(net, "mid_block.attn.num_heads", "MaskGIT"))


def infer(tensors: Tensors, heads: int | None = None) -> MaskGITConfig:
    words, width = tensors["token_emb.word_embeddings.weight"].shape
    return MaskGITConfig(
        width=width,
        depth=depth(tensors, "in_blocks") + depth(tensors, "out_blocks"),
        heads=known_heads(SIZES, width, heads),
        num_tokens=tensors["token_emb.position_embeddings.weight"].shape[0],
        codes=words - 1,
        classes=tensors["context_embed.word_embeddings.weight"].shape[0] - 1,
    )


def clean(tensors: Tensors) -> dict[str, Tensor]:
    """Without the index buffers that older files carry and the network never reads."""
    return {key: value for key, value in tensors.items() if not key.endswith("position_ids")}
