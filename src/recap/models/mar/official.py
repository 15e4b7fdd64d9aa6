"""The authors' MAR class and files: what is asked of an instance, and the sizes of both."""

from __future__ import annotations

from typing import Any

from torch import nn

from recap.models.family import Tensors, find, known_heads
from recap.models.mar.config import MARConfig
from recap.tokenizers.layers import depth

SIZES = {
    "mar-base": MARConfig(),
    "mar-large": MARConfig(1024, 16, 16, heads=16, head_depth=8, head_width=1280),
    "mar-huge": MARConfig(1280, 20, 20, heads=16, head_depth=12, head_width=1536),
}

NEEDS = (
    "z_proj",
    "z_proj_ln",
    "class_emb",
    "fake_latent",
    "encoder_pos_embed_learned",
    "encoder_blocks",
    "encoder_norm",
    "decoder_embed",
    "mask_token",
    "decoder_pos_embed_learned",
    "decoder_blocks",
    "decoder_norm",
    "diffusion_pos_embed_learned",
    "token_embed_dim",
    "num_classes",
    "forward_mae_encoder",
    "forward_mae_decoder",
    "diffloss.net.time_embed",
    "diffloss.net.cond_embed",
    "diffloss.net.input_proj",
    "diffloss.net.res_blocks",
    "diffloss.net.model_channels",
    "diffloss.net.final_layer.linear",
    "diffloss.net.final_layer.adaLN_modulation",
)


def sizes_of(net: nn.Module) -> MARConfig:
    """The sizes of an instance, read from its attributes."""
    part: dict[str, Any] = {path: find(net, path, "MAR") for path in NEEDS}
    encoder, decoder = part["encoder_pos_embed_learned"].shape, part["decoder_pos_embed_learned"].shape
    tokens = part["diffusion_pos_embed_learned"].shape[1]
    if encoder != decoder:
        raise ValueError(
            f"decoder_pos_embed_learned is {tuple(decoder)} and encoder_pos_embed_learned {tuple(encoder)}; "
            f"encoder and decoder of one length and width are expected"
        )
    return MARConfig(
        width=encoder[2],
        encoder_depth=len(part["encoder_blocks"]),
        decoder_depth=len(part["decoder_blocks"]),
        heads=find(part["decoder_blocks"], "0.attn.num_heads", "MAR"),
        head_depth=len(part["diffloss.net.res_blocks"]),
        head_width=part["diffloss.net.model_channels"],
        num_tokens=tokens,
        channels=part["token_embed_dim"],
        buffer=encoder[1] - tokens,
        classes=part["num_classes"],
    )


def infer(tensors: Tensors, heads: int | None = None) -> MARConfig:
    """The sizes of a state dict."""
    width, channels = tensors["z_proj.weight"].shape
    tokens = tensors["diffusion_pos_embed_learned"].shape[1]
    return MARConfig(
        width=width,
        encoder_depth=depth(tensors, "encoder_blocks"),
        decoder_depth=depth(tensors, "decoder_blocks"),
        heads=known_heads(SIZES, width, heads),
        head_depth=depth(tensors, r"diffloss\.net\.res_blocks"),
        head_width=tensors["diffloss.net.input_proj.weight"].shape[0],
        num_tokens=tokens,
        channels=channels,
        buffer=tensors["encoder_pos_embed_learned"].shape[1] - tokens,
        classes=tensors["class_emb.weight"].shape[0],
    )
