"""Parts of an image drawn anew: by a mask, or a share of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from recap.core.canvas import Draw, Known
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise
from recap.core.schedule import Ramp, Schedule
from recap.images import Picture, as_type, batch_of, masks_of, token_mask
from recap.inputs import Generators, Labels, generators_of, labels_of
from recap.models.adapter import Adapter
from recap.showing import captions_of, gallery, images_line, mask_html, pictures_of, tokens_line

if TYPE_CHECKING:
    from recap.pipeline import Callback, Pipeline

# which tokens (B, N) of a start to draw anew: model, tokens, labels, noise and how many of each image
Choice = Callable[[Adapter, Tensor, Tensor | None, Noise, int], Tensor]


@runtime_checkable
class Result(Protocol):
    """What an earlier call returned: its tokens in raster order are taken as they are."""

    @property
    def tokens(self) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Edited:
    """What an edit returns: images in the form asked for, tokens in raster order, and what was drawn anew."""

    images: Any
    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    masked: Tensor  # (B, N) True where a token was drawn anew
    schedules: tuple[Schedule, ...]  # one for each image
    names: tuple[str, ...] | None = None  # what each was to show, where the model has classes

    def __repr__(self) -> str:
        drawn = sorted(set(self.masked.sum(dim=1).tolist()))
        many = f"{drawn[0]}" if len(drawn) == 1 else f"{drawn[0]} to {drawn[-1]}"
        what = f"{images_line(self.images, self.tokens)}, {many} of {tokens_line(self.tokens)} drawn anew"
        return f"<Edited: {what}, {' and '.join(dict.fromkeys(map(str, self.schedules)))} evaluations>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the images, and in blue which of their tokens were drawn anew."""
        pictures = pictures_of(self.images, self.tokens)
        captions = [
            f"{mask_html(masked)} {caption or 'drawn anew'}"
            for masked, caption in zip(self.masked, captions_of(self.names, len(pictures)), strict=False)
        ]
        return gallery(pictures, captions, repr(self)[1:-1], len(self.tokens))


def edit(
    pipe: Pipeline,
    image: Picture | Sequence[Picture] | Result,
    mask: Picture | Sequence[Picture],
    labels: Labels | None = None,
    *,
    num_images: int | None = None,
    schedule: Schedule | None = None,
    generator: Generators | None = None,
    seed: int | None = None,
    guidance_scale: float | Ramp | None = None,
    paste: bool = False,
    output_type: str = "pil",
    callback_on_step_end: Callback | None = None,
    return_dict: bool = True,
) -> Any:
    """Draw the white part of `mask` anew and keep the tokens of all the rest, bit by bit.

    image: a PIL image, an array (h, w, 3), a tensor (3, h, w), a batch or list of them, or an earlier result,
    whose tokens are taken as they are. mask: likewise, without colours; white, 255 or True is redrawn, and a
    token is redrawn if any of its pixels is. Image, mask and labels are as many, or one for all; `num_images`
    asks for several versions. schedule: for the redrawn tokens, or for all of the model's, of which then the
    end is run; by default the model's own, with evaluations in proportion. paste: put the pixels that are
    not white back into the result, which by default is as the tokenizer draws it. A mask without white is
    refused; one that is all white is plain sampling. The rest is as in a call of the pipeline, but that an
    `Edited` is returned, and a callback is also told the "images" that its canvas holds: those with equally many
    tokens to draw.
    """
    pipe.check_output(output_type)
    tokenizer = pipe.need_tokenizer()
    pixels, before = start_of(pipe, image, paste)
    masks = masks_of(mask, pipe.side)  # (B, h, w)
    masked = token_mask(masks, tokenizer.config.stride).to(pipe.device)  # (B, N)
    checked = None if labels is None and not pipe.model.classes else labels_of(labels, None, pipe.model.classes)
    given = {"image": len(before), "mask": len(masks), "label": 1 if checked is None else len(checked)}
    batch = common(given, num_images)
    before, masked, masks = (repeated(values, batch) for values in (before, masked, masks))
    checked = None if checked is None else repeated(checked, batch)
    empty = (~masked.any(dim=1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"the mask of image(s) {empty} is empty, so there is nothing to redraw; make white (255, True, or 1.0 of "
            f"floats) what is to be redrawn"
        )
    generators = generators_of(batch, generator, seed)
    parts = equal_parts(masked)
    plans = {known: pipe.schedule_for(schedule, guidance_scale, known) for known in parts}
    tokens, done = torch.empty_like(before), 0
    with pipe.bar(" and ".join(map(str, plans.values())), sum(len(plan.steps) for plan in plans.values())) as bar:
        for known, images in parts.items():
            steps = pipe.canvases(
                None if checked is None else checked[images],
                num_images=len(images),
                schedule=plans[known],
                generator=[generators[index] for index in images],
                known=Known(before[images], masked[images]),
            )
            tokens[images] = pipe.follow(steps, bar, callback_on_step_end, images, done)
            done += len(plans[known].steps)
    plan_of = {index: plans[known] for known, images in parts.items() for index in images}
    schedules = tuple(plan_of[index] for index in range(batch))
    result = tokens if output_type == "latent" else pipe.decode(tokens, "pt")  # (B, 3, H, W)
    if output_type != "latent":
        if pixels is not None:
            white = masks.unsqueeze(1).to(result.device)
            result = torch.where(white, result, repeated(pixels, batch).to(result.device))
        result = as_type(result, output_type)
    return Edited(result, tokens, masked, schedules, pipe.names_of(checked)) if return_dict else (result,)


def start_of(
    pipe: Pipeline, image: Picture | Sequence[Picture] | Result, paste: bool
) -> tuple[Tensor | None, Tensor]:
    """Pixels (B, 3, H, W), if they are wanted, and tokens of what is to be edited."""
    if isinstance(image, Result):
        check_tokens(pipe.model, image.tokens)
        return (pipe.decode(image.tokens, "pt") if paste else None), image.tokens.to(pipe.device)
    pixels = batch_of(image, pipe.side)
    return (pixels if paste else None), pipe.encode(pixels)


def equal_parts(masked: Tensor) -> dict[int, list[int]]:
    """Images by their number of known tokens, each in the order in which they come."""
    parts: dict[int, list[int]] = {}
    for index, known in enumerate((~masked).sum(dim=1).tolist()):
        parts.setdefault(known, []).append(index)
    return parts


def common(given: dict[str, int], num_images: int | None) -> int:
    """How many images to draw, where one of anything serves for all of them."""
    asked = 1 if num_images is None else num_images
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise ValueError(f"num_images is {num_images!r}; say how many versions to draw, at least 1")
    batch = max(*given.values(), asked)
    if any(number not in (1, batch) for number in (*given.values(), asked)):
        counts = ", ".join(f"{number} {name}{'s' * (number > 1)}" for name, number in given.items())
        raise ValueError(
            f"{counts} and num_images={num_images} do not go together; give one for all, or one for each"
        )
    return batch


def repeated(values: Tensor, batch: int) -> Tensor:
    return values if len(values) == batch else values.expand(batch, *values.shape[1:])


def fresh_start(
    model: Adapter,
    tokens: Tensor,
    strength: float,
    choose: Choice,
    labels: Tensor | None,
    noise: Noise | None,
    batch: int,
) -> Known | None:
    """What is left of `tokens` when a share of `strength` is drawn anew; None if that is everything."""
    if not 0 < strength <= 1:
        raise ValueError(f"strength is {strength}; it is the share of tokens to draw anew, above 0 and at most 1")
    check_tokens(model, tokens)
    if len(tokens) not in (1, batch):
        raise ValueError(f"init has tokens of {len(tokens)} images but {batch} are drawn; give one, or one for each")
    count = max(1, round(strength * model.num_tokens))
    if noise is None or count == model.num_tokens:
        return None
    start = repeated(tokens.to(model.device), batch)
    return Known(start, choose(model, start, labels, noise, count))


def check_tokens(model: Adapter, tokens: Tensor) -> None:
    """Refuse tokens that are not this model's."""
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


def at_random(model: Adapter, tokens: Tensor, labels: Tensor | None, noise: Noise, count: int) -> Tensor:
    """Any `count` tokens of each image."""
    return noise.permutation(model.num_tokens) < count  # (B, N)


@torch.inference_mode()
def least_confident(model: Adapter, tokens: Tensor, labels: Tensor | None, noise: Noise, count: int) -> Tensor:
    """The `count` tokens of each image that the model finds least likely, each judged from a random half of the rest.

    Takes two full evaluations. Latents have no likelihood that one could ask for.
    """
    if not isinstance(model.head, CategoricalHead):
        raise ValueError("latents have no confidence to choose by; use recap.editing.at_random")
    order, half = noise.permutation(model.num_tokens), model.num_tokens // 2
    sure = torch.empty(order.shape, device=order.device)
    for seen in (half, model.num_tokens - half):
        canvas = model.start(labels, order, 1)
        ids = tokens.gather(1, order)
        canvas.commit(Draw(ids[:, :seen]))
        logits = model.prediction(model.full(canvas, None, slice(seen, model.num_tokens))).float()
        chances = logits.log_softmax(-1).gather(-1, ids[:, seen:].unsqueeze(-1)).squeeze(-1)  # (B, n)
        sure.scatter_(1, order[:, seen:], chances)
        order = order.roll(-seen, dims=1)  # and now the other half
    ranks = sure.argsort(dim=1, stable=True)
    return torch.zeros_like(sure, dtype=torch.bool).scatter(1, ranks[:, :count], True)  # (B, N)
