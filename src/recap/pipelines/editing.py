"""Parts of an image drawn anew: by a mask, or a share of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from recap.models.adapter import Adapter
from recap.pipelines.inputs import batch_of
from recap.pipelines.output import Output
from recap.runs.works import Start
from recap.view.images import Picture, masks_of, token_mask
from recap.view.images import batch_of as pictures_of

if TYPE_CHECKING:
    from recap.pipelines.pipeline import Pipeline


def starts_of(
    pipe: Pipeline, image: Picture | Sequence[Picture] | Output, mask: Picture | Sequence[Picture], paste: bool
) -> list[Start]:
    """What an edit begins with, from pictures in the model's size or from an earlier result; one mask serves for all.

    Pixels of a mask that are white are redrawn, and a token is redrawn if any of its pixels is.
    """
    side, stride = pipe.side, pipe.need_tokenizer().config.stride
    tokens = pixels = None
    if not isinstance(image, Output):
        pixels = pictures_of(image, side)
    else:
        tokens = tokens_of(pipe.model, image)
        pixels = pipe.decode(tokens, "pt") if paste else None
    white = masks_of(mask, side)  # (B, h, w)
    masked = token_mask(white, stride)  # (B, N)
    empty = [row for row, redrawn in enumerate(masked.any(dim=1).tolist()) if not redrawn]
    if empty:
        raise ValueError(
            f"the mask of image(s) {empty} is empty, so there is nothing to redraw; make white (255, True, or "
            f"1.0 of floats) what is to be redrawn"
        )
    batch = batch_of(None, image=pixels if tokens is None else tokens, mask=white)
    return [
        Start(
            masked[row % len(masked)],
            None if pixels is None else pixels[row % len(pixels)],
            white[row % len(white)] if paste else None,
            None if tokens is None else tokens[row % len(tokens)],
        )
        for row in range(batch)
    ]


def variation(pipe: Pipeline, tokens: Tensor, strength: float, generators: Sequence[Generator]) -> list[Start] | None:
    """What images begin with of which a share of `strength` of the tokens, any of them, is regenerated.

    None if nothing is kept.
    """
    if not 0 < strength <= 1:
        raise ValueError(f"strength is {strength}; it is the share of tokens to draw anew, above 0 and at most 1")
    num = pipe.model.num_tokens
    count = max(1, round(strength * num))
    if count == num:
        return None
    tokens = tokens.expand(len(generators), *tokens.shape[1:])
    masked = (pipe.noise(generators).permutation(num) < count).cpu()  # (B, N)
    return [Start(own, tokens=begun) for own, begun in zip(masked, tokens, strict=True)]


def tokens_of(model: Adapter, given: Tensor | Output) -> Tensor:
    """Tokens to begin with, on the model's device; those that are not this model's are refused."""
    tokens = given if isinstance(given, Tensor) else given.tokens
    codes = getattr(model.config, "codes", None)
    if codes is None:
        fits = tokens.ndim == 3 and tokens.shape[2] == model.config.channels and tokens.is_floating_point()
        wanted = f"floats of shape (B, {model.num_tokens}, {model.config.channels})"
    else:
        fits = tokens.ndim == 2 and not tokens.is_floating_point() and tokens.dtype != torch.bool
        fits = fits and bool(((tokens >= 0) & (tokens < codes)).all())
        wanted = f"integers of 0 to {codes - 1} of shape (B, {model.num_tokens})"
    if not fits or tokens.shape[1] != model.num_tokens or not len(tokens):
        raise ValueError(
            f"tokens are {tuple(tokens.shape)} of {tokens.dtype} but this model has {wanted}; "
            f"take those of an earlier result, or encode an image with pipe.encode(...)"
        )
    return tokens.to(model.device)
