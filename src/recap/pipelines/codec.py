"""Images to tokens and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from recap.models.adapter import Adapter
from recap.tokenizers import KLVAE, VQGAN
from recap.tokenizers.images import check_square, to_grid
from recap.view.images import Picture, as_type, batch_of

OUTPUT_TYPES = ("pil", "np", "pt", "latent")
GREY = 0.6  # of what is not decoded yet


class ImageCodec:
    """What a pipeline does with its tokenizer."""

    model: Adapter
    tokenizer: nn.Module | None

    @torch.no_grad()  # what comes out may be of use to layers with gradients
    def encode(self, images: Picture | Sequence[Picture]) -> Tensor:
        """The tokens (B, N) or (B, N, C) of images; each is encoded by itself and knows no neighbours."""
        tokenizer = self.need_tokenizer()
        device = next(tokenizer.parameters()).device
        batch = batch_of(images, self.side).to(device)
        with torch.autocast(device.type, enabled=False):
            return torch.cat([tokenizer.encode(image.unsqueeze(0)) for image in batch]).to(self.model.device)

    @property
    def side(self) -> int:
        """Pixels along one side of an image."""
        check_square(self.model.num_tokens)
        return math.isqrt(self.model.num_tokens) * self.need_tokenizer().config.stride

    def need_tokenizer(self) -> KLVAE | VQGAN:
        """The tokenizer, where nothing goes without."""
        if not isinstance(self.tokenizer, KLVAE | VQGAN):
            raise ValueError("this pipeline has no tokenizer to read images with; give it one")
        return self.tokenizer

    @torch.no_grad()
    def decode(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Images from tokens in raster order; on the CPU each is decoded by itself and knows no neighbours."""
        if output_type == "latent":
            return tokens
        assert isinstance(self.tokenizer, KLVAE | VQGAN)
        # convolutions round differently for batches of another size; one by one takes the CPU no longer
        size = 1 if tokens.device.type == "cpu" else len(tokens)
        parts = [tokens[first : first + size] for first in range(0, len(tokens), size)]
        with torch.autocast(tokens.device.type, enabled=False):
            images = torch.cat([self.tokenizer.decode(part) for part in parts])  # (B, 3, H, W) in [0, 1]
        return as_type(images, output_type)

    @torch.inference_mode()
    def preview(self, tokens: Tensor, masked: Tensor) -> list[Image.Image]:
        """Pictures of a run under way, from tokens in raster order; what is `masked` (B, N) is grey."""
        tokenizer = self.need_tokenizer()
        if not bool(masked.any()):
            return self.decode(tokens)
        rows = (slice(row, row + 1) for row in range(len(tokens)))
        pixels = torch.cat([tokenizer.decode_partly(tokens[row], masked[row]) for row in rows])  # (B, 3, H, W)
        veil = nn.functional.interpolate(to_grid(masked.unsqueeze(-1)).float(), pixels.shape[-1])
        return as_type(torch.where(veil > 0, GREY, pixels), "pil")

    def check_output(self, output_type: str) -> None:
        """Refuse what cannot be returned, before anything is drawn."""
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type is {output_type!r}; it must be one of {', '.join(OUTPUT_TYPES)}")
        if output_type != "latent" and self.tokenizer is None:
            raise ValueError('this pipeline has no tokenizer; give it one, or ask for output_type="latent"')
