"""Sizes of the embedded models; the commands that trained them are in their README.md."""

from __future__ import annotations

from typing import Any

from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.tokenizers import KLVAEConfig, VQGANConfig

FLOWERS: dict[str, Any] = {
    "kl": KLVAEConfig(channels=32, multipliers=(1, 2, 4, 4), latent_channels=16, groups=8),
    "vq": VQGANConfig(channels=32, multipliers=(1, 2, 4, 4), latent_channels=32, groups=8),
    "maskgit": MaskGITConfig(width=288, depth=8, heads=6, classes=102),
    "mage": MAGEConfig(288, 6, 4, heads=6, decoder_heads=6, class_slots=1, fake_class=1024, patch=0, vqgan=None),
    "mar": MARConfig(256, 6, 6, heads=4, head_depth=3, head_width=384, buffer=8, classes=102, token_bound=5.0),
}
