"""Tokenizers turn images into tokens and back: continuous for MAR, discrete for MaskGIT and MAGE; and text: BPE."""

from recap.tokenizers.bpe import BPE
from recap.tokenizers.kl_vae import KLVAE, KLVAEConfig
from recap.tokenizers.vqgan import VQGAN, VQGANConfig

__all__ = ["BPE", "KLVAE", "VQGAN", "KLVAEConfig", "VQGANConfig"]
