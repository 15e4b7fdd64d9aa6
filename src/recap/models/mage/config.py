"""Sizes of MAGE, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from recap.core.bounds import COUNT, LAYERS, TOKENS, WIDTH, bounded, check_bounds
from recap.models.sizes import IdCosts, check_width
from recap.tokenizers.vqgan import VQGANConfig


@dataclass(frozen=True, slots=True)
class MAGEConfig(IdCosts):
    """An unconditional MAGE network; the defaults are ViT-B.

    The vocabulary is the codebook, `class_slots` that training never used, and the mask. `patch` sizes
    parameters that only MAGE's pre-training reads and official files contain; 0 leaves them out. `vqgan` is
    the tokenizer that official files carry inside; None leaves it out.
    """

    width: int = bounded(768, 1, WIDTH)
    encoder_depth: int = bounded(12, 0, LAYERS)
    decoder_depth: int = bounded(8, 0, LAYERS)
    heads: int = bounded(12, 1, WIDTH)
    decoder_heads: int = bounded(16, 1, WIDTH)
    num_tokens: int = bounded(256, 1, TOKENS)
    codes: int = bounded(1024, 1, COUNT)
    class_slots: int = bounded(1000, 1, COUNT)
    fake_class: int = bounded(1100, 1, 2 * COUNT)
    patch: int = bounded(16, 0, 1024)
    vqgan: VQGANConfig | None = VQGANConfig()

    def __post_init__(self) -> None:
        check_bounds(self)
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
