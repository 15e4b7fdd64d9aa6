"""Sizes of the MaskGIT network (AutoNAT's U-ViT), and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from recap.core.bounds import COUNT, LAYERS, TOKENS, WIDTH, bounded, check_bounds
from recap.core.costs import block_flops, block_values
from recap.models.sizes import IdCosts, check_width


@dataclass(frozen=True, slots=True)
class MaskGITConfig(IdCosts):
    """A U-ViT over one class token and the image's tokens; the defaults are AutoNAT-L.

    `depth` counts the blocks before and after the middle one, which comes on top.
    """

    width: int = bounded(768, 1, WIDTH)
    depth: int = bounded(24, 0, LAYERS)
    heads: int = bounded(8, 1, WIDTH)
    num_tokens: int = bounded(256, 1, TOKENS)
    codes: int = bounded(1024, 1, COUNT)
    classes: int = bounded(1000, 1, COUNT)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_width(self.width, self.heads)
        if self.depth % 2:
            raise ValueError(f"depth is {self.depth}; half of the blocks come before the middle one, so it is even")

    @property
    def mask_id(self) -> int:
        return self.codes

    @property
    def null_class(self) -> int:
        return self.classes

    @property
    def stacks(self) -> dict[str, int]:
        return {"blocks": self.depth + 1}

    def block_flops(self, rows: int) -> int:
        merges = rows * self.depth // 2 * 4 * self.width**2
        return (self.depth + 1) * block_flops(self.width, rows, self.rows) + merges

    @property
    def full_values(self) -> int:
        skips = self.depth // 2  # outputs of the first half that wait for the second
        return block_values(self.width, self.rows) + skips * self.width * self.rows
