"""Which model a state dict belongs to, from its keys and shapes alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from recap.checkpoints.errors import CheckpointError
from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.models.zoo import SIZES, TOKENIZER_SIZES
from recap.tokenizers import KLVAEConfig, VQGANConfig

# a state dict does not say how many heads it has: the published sizes do
HEADS: dict[type[Any], dict[int, int]] = {
    MARConfig: {768: 12, 1024: 16, 1280: 16},
    MAGEConfig: {768: 12, 1024: 16},
    MaskGITConfig: {768: 8},
}
GROUPS = 32  # nor how many groups its norms have: both published tokenizers agree
MARKS = {  # a key that only this model has
    "mar": "diffloss.net.input_proj.weight",
    "mage": "decoder_blocks.0.attn.qkv.weight",
    "maskgit": "mid_block.attn.qkv.weight",
    "kl-vae": "post_quant_conv.weight",
    "vqgan": "quantize.embedding.weight",
}


def family_of_keys(tensors: Mapping[str, Tensor]) -> str | None:
    """The family whose mark is among the keys."""
    return next((family for family, mark in MARKS.items() if mark in tensors), None)


def infer(tensors: Mapping[str, Tensor], *, heads: int | None = None) -> Any:
    """The configuration that a state dict fits."""
    family = family_of_keys(tensors)
    if family is None:
        raise CheckpointError(
            f"the file holds none of the known models (MAR, MAGE, AutoNAT/MaskGIT, KL-16, VQGAN); "
            f"its first keys: {', '.join(list(tensors)[:5]) or 'none'}"
        )
    try:
        return {"mar": _mar, "mage": _mage, "maskgit": _maskgit, "kl-vae": _kl_vae, "vqgan": _vqgan}[family](
            tensors, heads
        )
    except (KeyError, IndexError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the file looks like {family} but is incomplete or of an odd size: {error}") from error


def describe(tensors: Mapping[str, Tensor]) -> str:
    """A guess for people: the published size, or the family and what it measures."""
    try:
        config = infer(tensors, heads=None)
    except CheckpointError:
        family = family_of_keys(tensors)
        return f"a {family} of unknown size" if family else "no model that this library knows"
    for name, size in {**SIZES, **TOKENIZER_SIZES}.items():
        if config == size:
            return name
        if isinstance(size, MAGEConfig) and config == replace(size, vqgan=None):
            return f"{name} without its tokenizer"
    return f"a {family_of_keys(tensors)} of another size: {config}"


def _heads(kind: type[Any], width: int, heads: int | None) -> int:
    if heads is not None:
        return heads
    if width not in HEADS[kind]:
        raise CheckpointError(
            f"width {width} is no published size of this family ({', '.join(map(str, HEADS[kind]))}), and a file "
            f"does not say how many heads it has; pass heads"
        )
    return HEADS[kind][width]


def _depth(tensors: Mapping[str, Tensor], stack: str) -> int:
    found = {int(m[1]) for key in tensors if (m := re.match(rf"{stack}\.(\d+)\.", key))}
    return max(found, default=-1) + 1


def _mar(tensors: Mapping[str, Tensor], heads: int | None) -> MARConfig:
    width, channels = tensors["z_proj.weight"].shape
    tokens = tensors["diffusion_pos_embed_learned"].shape[1]
    return MARConfig(
        width=width,
        encoder_depth=_depth(tensors, "encoder_blocks"),
        decoder_depth=_depth(tensors, "decoder_blocks"),
        heads=_heads(MARConfig, width, heads),
        head_depth=_depth(tensors, r"diffloss\.net\.res_blocks"),
        head_width=tensors["diffloss.net.input_proj.weight"].shape[0],
        num_tokens=tokens,
        channels=channels,
        buffer=tensors["encoder_pos_embed_learned"].shape[1] - tokens,
        classes=tensors["class_emb.weight"].shape[0],
    )


def _mage(tensors: Mapping[str, Tensor], heads: int | None) -> MAGEConfig:
    words, width = tensors["token_emb.word_embeddings.weight"].shape
    inner = {key.removeprefix("vqgan."): t for key, t in tensors.items() if key.startswith("vqgan.")}
    codes = inner["quantize.embedding.weight"].shape[0] if inner else 1024
    return MAGEConfig(
        width=width,
        encoder_depth=_depth(tensors, "blocks"),
        decoder_depth=_depth(tensors, "decoder_blocks"),
        heads=_heads(MAGEConfig, width, heads),
        decoder_heads=heads or 16,
        num_tokens=tensors["decoder_pos_embed_learned"].shape[1] - 1,
        codes=codes,
        class_slots=words - codes - 1,
        patch=tensors["patch_embed.proj.weight"].shape[-1] if "patch_embed.proj.weight" in tensors else 0,
        vqgan=_vqgan(inner, None) if inner else None,
    )


def _maskgit(tensors: Mapping[str, Tensor], heads: int | None) -> MaskGITConfig:
    words, width = tensors["token_emb.word_embeddings.weight"].shape
    return MaskGITConfig(
        width=width,
        depth=_depth(tensors, "in_blocks") + _depth(tensors, "out_blocks"),
        heads=_heads(MaskGITConfig, width, heads),
        num_tokens=tensors["token_emb.position_embeddings.weight"].shape[0],
        codes=words - 1,
        classes=tensors["context_embed.word_embeddings.weight"].shape[0] - 1,
    )


def _levels(tensors: Mapping[str, Tensor]) -> tuple[int, tuple[int, ...]]:
    channels = tensors["encoder.conv_in.weight"].shape[0]
    if channels % GROUPS:
        raise CheckpointError(
            f"the tokenizer in the file has {channels} channels, which the {GROUPS} norm groups of the published "
            f"ones do not divide, and a file does not say how many it has; build the network and load it by hand"
        )
    widths = [
        tensors[f"encoder.down.{i}.block.0.conv1.weight"].shape[0] for i in range(_depth(tensors, r"encoder\.down"))
    ]
    return channels, tuple(width // channels for width in widths)


def _kl_vae(tensors: Mapping[str, Tensor], _: int | None) -> KLVAEConfig:
    channels, multipliers = _levels(tensors)
    return KLVAEConfig(
        channels=channels,
        multipliers=multipliers,
        latent_channels=tensors["post_quant_conv.weight"].shape[0],
        encoder_blocks=_depth(tensors, r"encoder\.down\.0\.block"),
        decoder_blocks=_depth(tensors, r"decoder\.up\.0\.block"),
        groups=GROUPS,
    )


def _vqgan(tensors: Mapping[str, Tensor], _: int | None) -> VQGANConfig:
    channels, multipliers = _levels(tensors)
    codes, latent = tensors["quantize.embedding.weight"].shape
    return VQGANConfig(
        channels=channels,
        multipliers=multipliers,
        blocks=_depth(tensors, r"encoder\.down\.0\.block"),
        latent_channels=latent,
        codes=codes,
        groups=GROUPS,
    )
