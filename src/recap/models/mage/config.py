"""Sizes of MAGE, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from recap.models.sizes import IdCosts, check_depth, check_positive, check_width
from recap.tokenizers.vqgan import VQGANConfig


@dataclass(frozen=True, slots=True)
class MAGEConfig(IdCosts):
    """An unconditional MAGE network; the defaults are ViT-B.

    The vocabulary is the codebook, `class_slots` that training never used, and the mask. `patch` sizes
    parameters that only MAGE's pre-training reads and official files contain; 0 leaves them out. `vqgan` is
    the tokenizer that official files carry inside; None leaves it out.
    """

    width: int = 768
    encoder_depth: int = 12
    decoder_depth: int = 8
    heads: int = 12
    decoder_heads: int = 16
    num_tokens: int = 256
    codes: int = 1024
    class_slots: int = 1000
    fake_class: int = 1100
    patch: int = 16
    vqgan: VQGANConfig | None = VQGANConfig()

    def __post_init__(self) -> None:
        check_positive(self, ("num_tokens", "codes", "class_slots"))
        check_depth(self.encoder_depth, self.decoder_depth)
        check_width(self.width, self.heads)
        check_width(self.width, self.decoder_heads)
        if not self.codes <= self.fake_class < self.mask_id:
            raise ValueError(
                f"fake_class is {self.fake_class}; it must be one of the class slots {self.codes}..{self.mask_id - 1}"
            )

    @property
    def words(self) -> int:
        return self.codes + self.class_slots + 1

    @property
    def mask_id(self) -> int:
        return self.codes + self.class_slots

    @property
    def pad(self) -> int:
        return self.width

    @property
    def stacks(self) -> dict[str, int]:
        return {"encoder": self.encoder_depth, "decoder": self.decoder_depth}

    def full_flops(self, decoded: int) -> int:
        return self.block_flops(self.rows) + 2 * self.width**2 * (1 + decoded)

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        return self.block_flops(rows) + 2 * self.width**2 * (decoded - context)
