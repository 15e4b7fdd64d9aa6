"""Tokenizers turn images into tokens and back: continuous for MAR, discrete for MaskGIT and MAGE."""

from recap.tokenizers.kl_vae import KLVAE, KLVAEConfig
from recap.tokenizers.vqgan import VQGAN, VQGANConfig

__all__ = ["KLVAE", "VQGAN", "KLVAEConfig", "VQGANConfig"]
