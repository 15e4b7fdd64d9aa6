"""The authors' MAR class and files: what is asked of an instance, and the sizes of both."""

from __future__ import annotations

from typing import Any

from recap.models.family import Tensors, find, known_heads
from recap.models.mar.config import MARConfig
from recap.tokenizers.layers import depth

SIZES = {
    "mar-base": MARConfig(),
    "mar-large": MARConfig(1024, 16, 16, heads=16, head_depth=8, head_width=1280),
    "mar-huge": MARConfig(1280, 20, 20, heads=16, head_depth=12, head_width=1536),
}

NEEDS = (
    "z_proj z_proj_ln class_emb fake_latent mask_token token_embed_dim "
    "encoder_pos_embed_learned encoder_blocks encoder_norm forward_mae_encoder "
    "decoder_pos_embed_learned decoder_blocks decoder_norm forward_mae_decoder decoder_embed "
    "diffusion_pos_embed_learned diffloss.net.time_embed diffloss.net.cond_embed diffloss.net.input_proj "
    "diffloss.net.res_blocks diffloss.net.final_layer.linear diffloss.net.final_layer.adaLN_modulation"
)


def sizes_of(net: Any) -> MARConfig:
    encoder, decoder = net.encoder_pos_embed_learned.shape, net.decoder_pos_embed_learned.shape
    if encoder != decoder:
        raise ValueError(
            f"decoder_pos_embed_learned is {tuple(decoder)} and encoder_pos_embed_learned {tuple(encoder)}; "
            f"encoder and decoder of one length and width are expected"
        )
    return _sizes(net.state_dict(), find(net, "decoder_blocks.0.attn.num_heads", "MAR"), net.token_embed_dim)


def infer(tensors: Tensors, heads: int | None = None) -> MARConfig:
    width, channels = tensors["z_proj.weight"].shape
    return _sizes(tensors, known_heads(SIZES, width, heads), channels)


def _sizes(tensors: Tensors, heads: int, channels: int) -> MARConfig:
    """What the tensors say that are no linear layer's, since those of an instance may be wrapped."""
    _, length, width = tensors["encoder_pos_embed_learned"].shape
    tokens = tensors["diffusion_pos_embed_learned"].shape[1]
    return MARConfig(
        width=width,
        encoder_depth=depth(tensors, "encoder_blocks"),
        decoder_depth=depth(tensors, "decoder_blocks"),
        heads=heads,
        head_depth=depth(tensors, r"diffloss\.net\.res_blocks"),
        head_width=tensors["diffloss.net.res_blocks.0.in_ln.weight"].shape[0],
        num_tokens=tokens,
        channels=channels,
        buffer=length - tokens,
        classes=tensors["class_emb.weight"].shape[0],
    )
