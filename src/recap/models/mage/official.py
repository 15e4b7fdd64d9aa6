"""The authors' MAGE class: what is asked of an instance, its sizes, and its forward at generation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recap.models.family import Tensors, find, known_heads
from recap.models.mage.config import MAGEConfig
from recap.tokenizers import vqgan
from recap.tokenizers.layers import depth

SIZES = {
    "mage-base": MAGEConfig(),
    "mage-large": MAGEConfig(1024, 24, 8, heads=16, decoder_heads=16),
}

NEEDS = (
    "token_emb.word_embeddings.num_embeddings token_emb.position_embeddings token_emb.LayerNorm "
    "blocks norm decoder_embed decoder_pos_embed_learned decoder_blocks decoder_norm mlm_layer.bias "
    "codebook_size fake_class_label mask_token_label pad_with_cls_token forward_decoder"
)


def sizes_of(net: Any) -> MAGEConfig:
    if not net.pad_with_cls_token:
        raise ValueError(
            "pad_with_cls_token is False; only decoders whose masked positions are padded with the class token's "
            "output are known here, as the published models are"
        )
    width, inside = net.decoder_pos_embed_learned.shape[2], net.token_emb.word_embeddings.embedding_dim
    if width != inside:
        raise ValueError(
            f"decoder_pos_embed_learned is {width} wide and token_emb.word_embeddings {inside}; "
            f"encoder and decoder of one width are expected"
        )
    words, mask = net.token_emb.word_embeddings.num_embeddings, net.mask_token_label
    if mask != words - 1:
        raise ValueError(f"mask_token_label is {mask}; expected the last of the {words} words of token_emb")
    heads, decoder_heads = (find(net, f"{stack}.0.attn.num_heads", "MAGE") for stack in ("blocks", "decoder_blocks"))
    sizes = _sizes(net.state_dict(), net.codebook_size)
    return MAGEConfig(
        **sizes, heads=heads, decoder_heads=decoder_heads, fake_class=net.fake_class_label, patch=0, vqgan=None
    )


def plain_forward(net: Any, ids: Tensor, config: MAGEConfig) -> Tensor:
    """What the authors evaluate in a step of generation, by their own parts (B, N, V); no token is dropped."""
    ids = torch.cat([torch.full_like(ids[:, :1], config.fake_class), ids], dim=1)
    x = net.token_emb(ids)  # (B, 1 + N, D)
    for block in net.blocks:
        x = block(x)
    masked = (ids == config.mask_id).to(x.dtype)
    return net.forward_decoder(net.norm(x), torch.zeros_like(masked), masked)[:, 1:, : config.codes]


def infer(tensors: Tensors, heads: int | None = None) -> MAGEConfig:
    inner = {key.removeprefix("vqgan."): t for key, t in tensors.items() if key.startswith("vqgan.")}
    sizes = _sizes(tensors, inner["quantize.embedding.weight"].shape[0] if inner else 1024)
    return MAGEConfig(
        **sizes,
        heads=known_heads(SIZES, sizes["width"], heads),
        decoder_heads=heads or 16,
        patch=tensors["patch_embed.proj.weight"].shape[-1] if "patch_embed.proj.weight" in tensors else 0,
        vqgan=vqgan.infer(inner) if inner else None,
    )


def _sizes(tensors: Tensors, codes: int) -> dict[str, int]:
    words, width = tensors["token_emb.word_embeddings.weight"].shape
    return {
        "width": width,
        "encoder_depth": depth(tensors, "blocks"),
        "decoder_depth": depth(tensors, "decoder_blocks"),
        "num_tokens": tensors["decoder_pos_embed_learned"].shape[1] - 1,
        "codes": codes,
        "class_slots": words - codes - 1,
    }
