"""Parts of an image drawn anew: by a mask, or a share of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from recap.core.canvas import Draw
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise, stream_key
from recap.core.schedule import Ramp
from recap.models.adapter import Adapter
from recap.pipelines.inputs import Generators, generators_of
from recap.pipelines.labels import Labels, labels_of
from recap.pipelines.output import collect
from recap.runs.works import Start
from recap.view.images import Picture, batch_of, masks_of, token_mask

if TYPE_CHECKING:
    from recap.pipelines.pipeline import Asked, Callback, Pipeline

# which tokens (B, N) of a start to draw anew: model, tokens, labels, noise and how many of each image
Choice = Callable[[Adapter, Tensor, Tensor | None, Noise, int], Tensor]


@runtime_checkable
class Result(Protocol):
    """What an earlier call returned: its tokens in raster order are taken as they are."""

    @property
    def tokens(self) -> Tensor: ...


def edit(
    pipe: Pipeline,
    image: Picture | Sequence[Picture] | Result,
    mask: Picture | Sequence[Picture],
    labels: Labels | None = None,
    *,
    num_images: int | None = None,
    schedule: Asked | None = None,
    generator: Generators | None = None,
    seed: int | None = None,
    guidance: float | Ramp | None = None,
    paste: bool = False,
    output_type: str = "pil",
    callback_on_step_end: Callback | None = None,
    return_dict: bool = True,
) -> Any:
    """Draw the white part of `mask` anew and keep the tokens of all the rest, bit by bit.

    image: a PIL image, an array (h, w, 3), a tensor (3, h, w), a batch or list of them, or an earlier result,
    whose tokens are taken as they are. mask: likewise, without colours; white, 255 or True is redrawn, and a
    token is redrawn if any of its pixels is. Image, mask and labels are as many, or one for all; `num_images`
    asks for several versions. schedule: for the redrawn tokens; by default the model's own, with evaluations in
    proportion. paste: put the pixels that are not white back into the result, which by default is as the tokenizer
    draws it. A mask without white is refused; one that is all white is plain sampling. The rest is as in a call of
    the pipeline.
    """
    pipe.check_output(output_type)
    starts = starts_of(pipe, image, mask, paste)
    checked = None if labels is None and not pipe.model.classes else labels_of(labels, None, pipe.model.classes)
    given = {"image": starts.images, "mask": starts.masks, "label": 1 if checked is None else len(checked)}
    batch = common(given, num_images)
    works = pipe.works(
        None if checked is None else repeated(checked, batch),
        batch if checked is None else None,
        schedule,
        seed=seed,
        generator=generator,
        guidance=guidance,
        starts=starts.of(batch),
    )
    output = collect(pipe, works, output_type, callback_on_step_end)
    return output if return_dict else (output.images,)


@dataclass(frozen=True, slots=True)
class Starts:
    """Images and masks of an edit, as many as were given."""

    pixels: Tensor | None  # (B, 3, H, W)
    tokens: Tensor | None  # (B, N) or (B, N, C), where they are known already
    white: Tensor  # (B, H, W)
    masked: Tensor  # (B, N)
    paste: bool

    @property
    def images(self) -> int:
        given = self.pixels if self.tokens is None else self.tokens
        assert given is not None
        return len(given)

    @property
    def masks(self) -> int:
        return len(self.white)

    def of(self, batch: int) -> list[Start]:
        """A start for each of `batch` images; what was given once serves for all, and is read once."""
        empty = [row for row in range(self.masks) if not bool(self.masked[row].any())]
        if empty:
            raise ValueError(
                f"the mask of image(s) {empty} is empty, so there is nothing to redraw; make white (255, True, or "
                f"1.0 of floats) what is to be redrawn"
            )
        made: dict[tuple[int, int], Start] = {}
        for row in range(batch):
            image, mask = row % self.images, row % self.masks
            if (image, mask) not in made:
                made[image, mask] = Start(
                    self.masked[mask],
                    None if self.pixels is None else self.pixels[image],
                    self.white[mask] if self.paste else None,
                    None if self.tokens is None else self.tokens[image],
                )
        return [made[row % self.images, row % self.masks] for row in range(batch)]


def starts_of(
    pipe: Pipeline, image: Picture | Sequence[Picture] | Result, mask: Picture | Sequence[Picture], paste: bool
) -> Starts:
    """What an edit begins with, from pictures in the model's size or from an earlier result."""
    stride, pixels, tokens = pipe.need_tokenizer().config.stride, None, None
    if isinstance(image, Result):
        check_tokens(pipe.model, image.tokens)
        tokens = image.tokens.to(pipe.device)
        pixels = pipe.decode(tokens, "pt") if paste else None
    else:
        pixels = batch_of(image, pipe.side)
    white = masks_of(mask, pipe.side)  # (B, h, w)
    return Starts(pixels, tokens, white, token_mask(white, stride), paste)


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


def variation(
    pipe: Pipeline,
    init: Tensor | Result,
    strength: float,
    choose: Choice | None = None,
    *,
    labels: Labels | None = None,
    num_images: int | None = None,
    seed: int | None = None,
    generator: Generators | None = None,
) -> dict[str, Any]:
    """What `Pipeline.works` is asked for, so that a share of `strength` of the tokens of `init` is regenerated."""
    model = pipe.model
    checked = labels_of(labels, num_images, model.classes)
    batch = num_images if checked is None else len(checked)
    assert batch is not None
    count = strength_tokens(strength, model.num_tokens)
    tokens = init if isinstance(init, Tensor) else init.tokens
    check_tokens(model, tokens)
    if len(tokens) not in (1, batch):
        raise ValueError(f"init has tokens of {len(tokens)} images but {batch} are wanted; give one, or one for each")
    generators, starts = generators_of(batch, generator, seed), None
    if count < model.num_tokens:
        begun = repeated(tokens.to(model.device), batch)
        on_device = None if checked is None else checked.to(model.device)
        masked = (choose or at_random)(model, begun, on_device, pipe.noise(generators), count).cpu()
        starts = [Start(masked[row], tokens=begun[row]) for row in range(batch)]
    return {"starts": starts, "keys": [stream_key(each) for each in generators]}


def strength_tokens(strength: float, tokens: int) -> int:
    """How many of an image's tokens a share means."""
    if not 0 < strength <= 1:
        raise ValueError(f"strength is {strength}; it is the share of tokens to draw anew, above 0 and at most 1")
    return max(1, round(strength * tokens))


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
        raise ValueError("latents have no confidence to choose by; use recap.pipelines.editing.at_random")
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
