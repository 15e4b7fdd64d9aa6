"""Labels in, images out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor, nn

from recap import editing
from recap.checkpoints import CheckpointError, save_pretrained
from recap.core.canvas import Canvas, Known, UnsoundError
from recap.core.decode import check_fit, grouped_decode
from recap.core.presets import PUBLISHED, Grouping, Sampling, usual_guidance
from recap.core.protocols import Selector
from recap.core.schedule import Ramp, Schedule
from recap.editing import Choice, Result, at_random, fresh_start
from recap.engine import Releasable, noise_with, with_engine
from recap.frames import Frame, frames_of
from recap.images import Picture, as_type, batch_of
from recap.inputs import Generators, Labels, generators_of, labels_of
from recap.labels import find_class
from recap.loading import check_pair, model_folder, read_parts
from recap.models.adapter import Adapter
from recap.models.zoo import adapt, usual_setting
from recap.progress import tqdm
from recap.showing import captions_of, gallery, images_line, pictures_of, pipeline_lines, tokens_line
from recap.tokenizers import KLVAE, VQGAN
from recap.tokenizers.images import check_square, to_grid

OUTPUT_TYPES = ("pil", "np", "pt", "latent")
GREY = 0.6  # of what is not decoded yet
Callback = Callable[["Pipeline", int, int, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Output:
    """What a call returns: images in the form asked for, tokens in raster order, and what was run."""

    images: Any
    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    schedule: Schedule
    names: tuple[str, ...] | None = None  # what each image was to show, where the model has classes

    def __repr__(self) -> str:
        line = f"{images_line(self.images, self.tokens)}, {tokens_line(self.tokens)}, {self.schedule} evaluations"
        return f"<Output: {line}>"

    def _repr_html_(self) -> str:
        """What a notebook shows of it: the images and what they were to show."""
        pictures = pictures_of(self.images, self.tokens)
        return gallery(pictures, captions_of(self.names, len(pictures)), repr(self)[1:-1], len(self.tokens))


class Pipeline:
    """A model, its tokenizer, and the grouped-decoding loop between them.

    `model` is a network of the library or an adapter; `selector` and `schedule` default to what suits its
    family. Nothing is moved or converted unless `.to()` says so.
    """

    def __init__(
        self,
        model: nn.Module | Adapter,
        tokenizer: nn.Module | None = None,
        *,
        selector: Selector | None = None,
        schedule: Schedule | None = None,
        setting: str | None = None,
        sampling: Sampling | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        """`setting` names the published schedule to follow by default (see `recap.published`).

        `sampling` says more than a name: this model's own defaults. `class_names` has one name a class.
        """
        self.model: Adapter = adapt(model) if isinstance(model, nn.Module) else model
        self.engine = "eager"
        self._plain_model, self._noise = self.model, noise_with("eager")
        inside = getattr(self.model.module, "vqgan", None)  # an official object has one of another kind
        self.tokenizer = tokenizer or (inside if isinstance(inside, VQGAN) else None)
        if self.tokenizer is not None:
            check_pair(self.model, self.tokenizer)
        self.selector: Selector = selector or self.model.selector()
        usual = usual_setting(self.model)
        named = sampling.preset if sampling is not None and sampling.preset in PUBLISHED else usual
        self.setting = setting or named
        self.sampling = sampling or Sampling(self.setting)
        self.class_names = None if class_names is None else tuple(class_names)
        if self.class_names is not None and len(self.class_names) != self.model.classes:
            raise ValueError(
                f"{len(self.class_names)} class names were given for a model of {self.model.classes} classes; "
                f"give one for each"
            )
        self.schedule = schedule
        self.progress = True

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        tokenizer: nn.Module | str | Path | None = None,
        torch_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Read a model folder, a model that comes with the package by its name, or "owner/name" from the hub.

        Its tokenizer is `tokenizer`, or what its `config.json` names, or lies in the sub-folder `tokenizer`. The hub
        needs the extra `hub`; with `local_files_only`, or HF_HUB_OFFLINE=1 in the environment, only what was
        downloaded before is looked at. `revision` is a branch, tag or commit there.
        """
        folder = model_folder(folder, revision=revision, local_files_only=local_files_only)
        parts = read_parts(folder, tokenizer)
        try:
            pipe = cls(
                parts.net,
                parts.tokenizer,
                setting=parts.setting,
                sampling=parts.about.sampling,
                class_names=parts.about.class_names,
            )
        except ValueError as error:
            raise CheckpointError(f"{folder}: {error}") from error
        return pipe.to(device, torch_dtype)

    def save_pretrained(self, folder: str | Path, *, compact: bool = False) -> Path:
        """Write the model to `folder`, and its tokenizer to the sub-folder `tokenizer`."""
        about: dict[str, Any] = {"setting": self.setting}
        if self.class_names is not None:
            about["class_names"] = list(self.class_names)
        if self.sampling != Sampling(self.setting):
            about["sampling"] = self.sampling.as_dict()
        folder = save_pretrained(self.model.module, folder, compact=compact, **about)
        if self.tokenizer is not None and self.tokenizer is not getattr(self.model.module, "vqgan", None):
            save_pretrained(self.tokenizer, folder / "tokenizer", compact=compact)
        return folder

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move to a device, and the model to a dtype; the tokenizer runs once an image and stays as it is."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        kept = None if self.tokenizer is None else self.tokenizer.state_dict()
        self.model = self._plain_model  # an engine holds on to the addresses of weights
        self.model.module.to(device=device, dtype=dtype)
        if self.tokenizer is not None and kept is not None:
            # it may lie inside the model, and there and back would round it
            self.tokenizer.load_state_dict(kept, assign=True)
            self.tokenizer.to(device=device)
        return self.compile(self.engine) if self.engine != "eager" else self

    def compile(self, engine: str = "graphs") -> Self:
        """Run the model with another engine from now on: "eager", "fused" (Triton kernels) or "graphs" (CUDA graphs).

        Graphs are captured in the second run of a shape. After a change of weights, call it again.
        """
        self.model, self._noise = with_engine(self._plain_model, engine), noise_with(engine)
        self.engine = engine
        return self

    def release(self) -> None:
        """Let go of the memory that the engine keeps for later runs; the next one sets itself up anew."""
        self.model.release()
        if isinstance(self._noise, Releasable):
            self._noise.release()

    @property
    def device(self) -> torch.device:
        return self.model.device

    def default_schedule(
        self,
        full: int | None = None,
        local: int | None = None,
        plain: int | None = None,
        tokens: int | None = None,
    ) -> Schedule:
        """How this model is sampled: its own numbers of evaluations, or these.

        With `tokens`, only so many are decoded and the others known; its own numbers shrink with their share.
        """
        whole = self.model.num_tokens
        tokens = whole if tokens is None else tokens
        given: Grouping = {"full": full, "plain": plain, "known": whole - tokens}
        if local is not None:
            given["local"] = local
        sampling = self.sampling if tokens == whole else self.sampling.scaled(tokens, whole - tokens)
        return sampling.schedule(tokens, **given)

    def label(self, name: str) -> int:
        """The number of a class by its name, or by a part of it that only one class has."""
        return find_class(name, self.class_names, self.model.classes)

    def names_of(self, labels: Tensor | None) -> tuple[str, ...] | None:
        """The names of classes by their numbers, where there are classes."""
        if labels is None:
            return None
        return tuple(self.class_names[i] if self.class_names else f"class {i}" for i in labels.tolist())

    def __repr__(self) -> str:
        return pipeline_lines(self)

    def __call__(
        self,
        labels: Labels | None = None,
        *,
        num_images: int | None = None,
        schedule: Schedule | None = None,
        generator: Generators | None = None,
        seed: int | None = None,
        guidance_scale: float | Ramp | None = None,
        init: Tensor | Result | None = None,
        strength: float = 0.5,
        choose: Choice = at_random,
        output_type: str = "pil",
        callback_on_step_end: Callback | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Draw one image for each label, or `num_images` of an unconditional model.

        generator: one for each image, or one from which a seed is drawn for each; without it, `seed` and the
        image's index give the randomness. guidance_scale: a number for the family's usual guidance (a ramp
        from 1 for MAR, constant otherwise), or a `Ramp`. init: tokens, one row or one for each image, or an earlier
        result, of which a share of `strength` is drawn anew; `choose` says which (`recap.editing`).
        callback_on_step_end(pipe, step, decoded, {"canvas": canvas}) is called after every sub-step; if it returns
        a dict with "tokens" in raster order, these take the place of what is decoded. Returns an `Output`, or with
        return_dict=False a tuple of the images alone.
        """
        self.check_output(output_type)
        checked = labels_of(labels, num_images, self.model.classes)
        batch = num_images if checked is None else len(checked)
        assert batch is not None
        generators = generators_of(batch, generator, seed)
        known = None
        if init is not None:
            tokens = init if isinstance(init, Tensor) else init.tokens
            noise = None if strength == 1 else self._noise(generators, self.device)
            known = fresh_start(self.model, tokens, strength, choose, self._on_device(checked), noise, batch)
        schedule = self.schedule_for(schedule, guidance_scale, 0 if known is None else known.count)
        steps = self.canvases(checked, num_images=num_images, schedule=schedule, generator=generators, known=known)
        with self.bar(schedule, len(schedule.steps)) as bar:
            tokens = self.follow(steps, bar, callback_on_step_end)
        images = self.decode(tokens, output_type)
        return Output(images, tokens, schedule, self.names_of(checked)) if return_dict else (images,)

    edit = editing.edit

    def stream(
        self,
        labels: Labels | None = None,
        *,
        num_images: int | None = None,
        schedule: Schedule | None = None,
        generator: Generators | None = None,
        seed: int | None = None,
        guidance_scale: float | Ramp | None = None,
        known: Known | None = None,
    ) -> Iterator[Frame]:
        """A frame after every sub-step; the run waits for whoever looks at it, and ends when nobody does.

        The last frame's images are those that a call with the same arguments returns. `known` tokens are there from
        the start. Everything is checked before the first frame.
        """
        schedule = self.schedule_for(schedule, guidance_scale, 0 if known is None else known.count)
        canvases = self.canvases(
            labels, num_images=num_images, schedule=schedule, generator=generator, seed=seed, known=known
        )
        return frames_of(self, canvases, schedule)

    def canvases(
        self,
        labels: Labels | None = None,
        *,
        num_images: int | None = None,
        schedule: Schedule | None = None,
        generator: Generators | None = None,
        seed: int | None = None,
        known: Known | None = None,
    ) -> Iterator[Canvas]:
        """The live canvas after every sub-step, from `known` tokens on; everything is checked before the first."""
        schedule = self.schedule_for(schedule, None, 0 if known is None else known.count)
        checked = labels_of(labels, num_images, self.model.classes)
        batch = num_images if checked is None else len(checked)
        assert batch is not None
        noise = self._noise(generators_of(batch, generator, seed), self.device)
        return grouped_decode(self.model, self._on_device(checked), schedule, self.selector, noise, known)

    def follow(
        self,
        steps: Iterable[Canvas],
        bar: Any,
        callback: Callback | None,
        images: Sequence[int] | None = None,
        first: int = 0,
    ) -> Tensor:
        """The tokens in raster order that a run ends with; tells the bar and the callback of every sub-step.

        `images` are the ones that this run has of a call's, where it has not all of them.
        """
        canvas: Canvas | None = None
        for step, canvas in enumerate(steps, first):
            if callback is not None:
                values = {"canvas": canvas} if images is None else {"canvas": canvas, "images": images}
                heed(canvas, callback(self, step, canvas.decoded, values))
            bar.update()
        assert canvas is not None
        if not bool(canvas.sound.all()):
            raise UnsoundError(canvas.sound, canvas.raster(), images)
        return canvas.raster()

    def bar(self, what: object, steps: int) -> Any:
        """The progress bar of a call."""
        return tqdm(total=steps, desc=f"decoding {what}", disable=not self.progress)

    @torch.inference_mode()
    def encode(self, images: Picture | Sequence[Picture]) -> Tensor:
        """The tokens (B, N) or (B, N, C) of images; each is encoded by itself and knows no neighbours."""
        tokenizer = self.need_tokenizer()
        device = next(tokenizer.parameters()).device
        batch = batch_of(images, self.side).to(device)
        return torch.cat([tokenizer.encode(image.unsqueeze(0)) for image in batch]).to(self.device)

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

    @torch.inference_mode()
    def decode(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Images from tokens in raster order; on the CPU each is decoded by itself and knows no neighbours."""
        if output_type == "latent":
            return tokens
        assert isinstance(self.tokenizer, KLVAE | VQGAN)
        # convolutions round differently for batches of another size; one by one takes the CPU no longer
        size = 1 if tokens.device.type == "cpu" else len(tokens)
        parts = [tokens[first : first + size] for first in range(0, len(tokens), size)]
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
        veil = torch.nn.functional.interpolate(to_grid(masked.unsqueeze(-1)).float(), pixels.shape[-1])
        return as_type(torch.where(veil > 0, GREY, pixels), "pil")

    def check_output(self, output_type: str) -> None:
        """Refuse what cannot be returned, before anything is drawn."""
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type is {output_type!r}; it must be one of {', '.join(OUTPUT_TYPES)}")
        if output_type != "latent" and self.tokenizer is None:
            raise ValueError('this pipeline has no tokenizer; give it one, or ask for output_type="latent"')

    def schedule_for(self, schedule: Schedule | None, guidance: float | Ramp | None, known: int = 0) -> Schedule:
        """The schedule of a run with `known` tokens: for the others, or the end of one for all."""
        tokens = self.model.num_tokens
        schedule = schedule or self.schedule or self.default_schedule(tokens=tokens - known)
        if known and not schedule.known and schedule.tokens == tokens:
            schedule = schedule.after(known)
        schedule = schedule.knowing(known)
        if guidance is not None:
            schedule = schedule.with_guidance(usual_guidance(self.sampling.preset, guidance))
        check_fit(self.model, schedule)
        return schedule

    def _on_device(self, labels: Tensor | None) -> Tensor | None:
        return None if labels is None else labels.to(self.device)


def heed(canvas: Canvas, answer: Any) -> None:
    """Take over what a callback returned, if that is a dict."""
    if not isinstance(answer, Mapping):
        return
    unknown = set(answer) - {"canvas", "images", "tokens"}
    if unknown or answer.get("canvas", canvas) is not canvas:
        what = ", ".join(sorted(map(str, unknown))) or "another canvas"
        raise ValueError(f'callback_on_step_end returned {what}; it may return "tokens" in raster order, or None')
    if "tokens" in answer:
        canvas.revise(answer["tokens"])


def load(model: str | Path, **options: Any) -> Pipeline:
    """A pipeline from a folder, an embedded name or the hub; see `Pipeline.from_pretrained` for the options."""
    return Pipeline.from_pretrained(model, **options)


__all__ = ["CheckpointError", "Output", "Pipeline", "load"]
