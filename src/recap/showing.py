"""How results look in a notebook, and in a line of text: never a screen full of numbers."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from recap.images import as_type
from recap.tokenizers import KLVAE, VQGAN

if TYPE_CHECKING:
    from recap.pipeline import Pipeline

MOST = 16  # images that a notebook is shown of a result
LARGEST, LEAST = 256, 128  # pixels of an image there
MASK = (91, 143, 208)
QUALITY = 85  # of JPEG


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def images_line(images: Any, tokens: Tensor) -> str:
    """Number, size and kind of the images of a result."""
    if images is tokens:
        return f"tokens of {counted(len(tokens), 'image')}"
    batch = len(images)
    if isinstance(images, Tensor | np.ndarray):
        kind = "a tensor" if isinstance(images, Tensor) else "an array"
        return f"{counted(batch, 'image')} as {kind} {tuple(images.shape)}"
    return f"{counted(batch, 'image')} of {images[0].width}x{images[0].height}"


def tokens_line(tokens: Tensor) -> str:
    """Number and kind of the tokens of an image."""
    return f"{tokens.shape[1]} {'ids' if tokens.ndim == 2 else f'latents of {tokens.shape[2]} channels'} each"


def pictures_of(images: Any, tokens: Tensor) -> list[Image.Image]:
    """The first images of a result, in whatever form it has them."""
    if images is tokens:
        return []
    first = images[:MOST]
    if isinstance(first, np.ndarray):
        return [Image.fromarray(image) for image in (first * 255).round().astype(np.uint8)]
    return as_type(first, "pil") if isinstance(first, Tensor) else list(first)


def gallery(pictures: Sequence[Image.Image], captions: Sequence[str], head: str, total: int) -> str:
    """HTML of pictures with a caption each, under a line that says what they are."""
    figures = "".join(
        f'<figure style="margin:0 10px 10px 0;width:{shown_width(picture)}px">{image_html(picture)}'
        f'<figcaption style="font-size:85%">{caption}</figcaption></figure>'
        for picture, caption in zip(pictures, captions, strict=True)
    )
    more = f"<div>and {total - len(pictures)} more</div>" if 0 < len(pictures) < total else ""
    return (
        f'<div style="margin-bottom:6px">{escape(head)}</div><div style="display:flex;flex-wrap:wrap">{figures}</div>'
        + more
    )


def shown_width(picture: Image.Image) -> int:
    """Pixels of a page that a picture takes, and its caption too."""
    return min(LARGEST, max(LEAST, picture.width))


def image_html(picture: Image.Image, scale: int = 1) -> str:
    """An image of which the data lie in the page; large ones are scaled down, and tiny ones shown larger."""
    if max(picture.size) > LARGEST:
        picture = picture.copy()
        picture.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    wide = shown_width(picture) * scale
    blocks = ";image-rendering:pixelated" if wide > picture.width else ""
    return f'<img src="{inline(picture)}" width="{wide}" style="display:block{blocks}">'


def mask_html(masked: Tensor) -> str:
    """A small square that is blue where the tokens `masked` (N) says were drawn."""
    side = math.isqrt(len(masked))
    there = masked.cpu().view(side, side).numpy()
    picture = Image.fromarray(np.where(there[..., None], MASK, 255).astype(np.uint8))
    style = "image-rendering:pixelated;border:1px solid;vertical-align:middle"
    return f'<img src="{inline(picture)}" width="16" height="16" style="{style}" title="drawn anew">'


def inline(picture: Image.Image) -> str:
    """A picture as the address of itself: a PNG, or a JPEG where that takes less room."""
    kinds: dict[str, dict[str, Any]] = {"png": {"optimize": True}, "jpeg": {"quality": QUALITY, "subsampling": 0}}
    files = {}
    for kind, options in kinds.items():
        picture.convert("RGB").save(file := io.BytesIO(), kind, **options)
        files[kind] = file.getvalue()
    kind = min(files, key=lambda name: len(files[name]))
    return f"data:image/{kind};base64,{base64.b64encode(files[kind]).decode()}"


def captions_of(names: Sequence[str] | None, count: int) -> list[str]:
    """A caption for each of the first images, ready for a page."""
    return [""] * count if names is None else [escape(name) for name in names[:count]]


def pipeline_lines(pipe: Pipeline) -> str:
    """What a pipeline is made of, in a few lines."""
    model, tokens = pipe.model, f"{pipe.model.num_tokens} tokens"
    millions = sum(parameter.numel() for parameter in model.module.parameters()) / 1e6
    classes = f", {model.classes} classes" if model.classes else ""
    if pipe.tokenizer is None:
        images = f"{tokens}, no tokenizer"
    else:
        fits = isinstance(pipe.tokenizer, KLVAE | VQGAN) and math.isqrt(model.num_tokens) ** 2 == model.num_tokens
        side = f"{pipe.side}x{pipe.side} pixels from " if fits else ""
        images = f"{side}{tokens} by {type(pipe.tokenizer).__name__}"
    try:
        schedule = f"{pipe.schedule or pipe.default_schedule()} evaluations"
    except ValueError:  # a model of few tokens
        schedule = "none that fits by default"
    parts = {
        "model": f"{type(model.module).__name__} of {millions:.1f} M parameters{classes}",
        "images": images,
        "schedule": f"{schedule}, {type(pipe.selector).__name__}",
        "runs": f"on {pipe.device} in {str(model.dtype).removeprefix('torch.')}, {pipe.engine}",
    }
    return "\n".join(["Pipeline(", *(f"  {name}: {text}" for name, text in parts.items()), ")"])
