"""Labels in, images out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm.auto import tqdm

from recap import weights
from recap.checkpoints import CheckpointError, load_pretrained, save_pretrained
from recap.checkpoints.about import read_about
from recap.checkpoints.folder import CONFIG, read_config
from recap.core.canvas import Canvas
from recap.core.decode import check_fit, grouped_decode
from recap.core.noise import image_generators
from recap.core.presets import PUBLISHED, Grouping, Sampling, usual_guidance
from recap.core.protocols import Selector
from recap.core.schedule import Ramp, Schedule
from recap.engine import noise_with, with_engine
from recap.labels import find_class
from recap.models.adapter import Adapter
from recap.models.zoo import FAMILIES, adapt, usual_setting
from recap.tokenizers import KLVAE, VQGAN

OUTPUT_TYPES = ("pil", "np", "pt", "latent")
Callback = Callable[["Pipeline", int, int, dict[str, Any]], Any]
Labels = int | Sequence[int] | Tensor | np.ndarray


@dataclass(frozen=True, slots=True)
class Output:
    """What a call returns: images in the form asked for, tokens in raster order, and what was run."""

    images: Any
    tokens: Tensor  # (B, N) ids or (B, N, C) latents
    schedule: Schedule


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
    ) -> Self:
        """Read a model folder, or a model that comes with the package by its name.

        Its tokenizer is `tokenizer`, or what its `config.json` names, or lies in the sub-folder `tokenizer`.
        """
        folder = model_folder(folder)
        config = read_config(folder)
        if config["family"] not in FAMILIES:
            raise CheckpointError(f"{folder} holds a {config['family']}, which is a tokenizer; give a model's folder")
        about = read_about(folder, config)
        net = load_pretrained(folder)
        if tokenizer is None:
            beside = folder / "tokenizer" if (folder / "tokenizer" / CONFIG).is_file() else None
            tokenizer = about.tokenizer or beside
        if isinstance(tokenizer, str) and not Path(tokenizer).is_dir():
            tokenizer = weights.find(tokenizer) or tokenizer
        if isinstance(tokenizer, str | Path):
            tokenizer = load_pretrained(tokenizer)
        try:
            pipe = cls(
                net,
                tokenizer,
                setting=config.get("setting"),
                sampling=about.sampling,
                class_names=about.class_names,
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

    @property
    def device(self) -> torch.device:
        return self.model.device

    def default_schedule(
        self, full: int | None = None, local: int | None = None, plain: int | None = None
    ) -> Schedule:
        """How this model is sampled: its own numbers of evaluations, or these."""
        given: Grouping = {"full": full, "plain": plain}
        if local is not None:
            given["local"] = local
        return self.sampling.schedule(self.model.num_tokens, **given)

    def label(self, name: str) -> int:
        """The number of a class by its name, or by a part of it that only one class has."""
        return find_class(name, self.class_names, self.model.classes)

    def __call__(
        self,
        labels: Labels | None = None,
        *,
        num_images: int | None = None,
        schedule: Schedule | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | None = None,
        guidance_scale: float | Ramp | None = None,
        output_type: str = "pil",
        callback_on_step_end: Callback | None = None,
    ) -> Output:
        """Draw one image for each label, or `num_images` of an unconditional model.

        generator: one for each image, or one from which a seed is drawn for each; without it, `seed` and the
        image's index give the randomness. guidance_scale: a number for the family's usual guidance (a ramp
        from 1 for MAR, constant otherwise), or a `Ramp`. callback_on_step_end(pipe, step, decoded, {"canvas":
        canvas}) is called after every sub-step.
        """
        if output_type not in OUTPUT_TYPES:
            raise ValueError(f"output_type is {output_type!r}; it must be one of {', '.join(OUTPUT_TYPES)}")
        if output_type != "latent" and self.tokenizer is None:
            raise ValueError('this pipeline has no tokenizer; give it one, or ask for output_type="latent"')
        schedule = self._schedule(schedule, guidance_scale)
        steps = self.stream(labels, num_images=num_images, schedule=schedule, generator=generator, seed=seed)
        canvas: Canvas | None = None
        bar = tqdm(steps, total=len(schedule.steps), desc=f"decoding {schedule}", disable=not self.progress)
        for step, canvas in enumerate(bar):
            if callback_on_step_end is not None:
                callback_on_step_end(self, step, canvas.decoded, {"canvas": canvas})
        assert canvas is not None
        tokens = self._finished(canvas)
        return Output(self.decode(tokens, output_type), tokens, schedule)

    def stream(
        self,
        labels: Labels | None = None,
        *,
        num_images: int | None = None,
        schedule: Schedule | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        seed: int | None = None,
    ) -> Iterator[Canvas]:
        """The canvas after every sub-step; everything is checked before the first."""
        schedule = self._schedule(schedule, None)
        checked = self._labels(labels, num_images)
        batch = num_images if checked is None else len(checked)
        assert batch is not None
        noise = self._noise(self._generators(batch, generator, seed), self.device)
        device_labels = None if checked is None else checked.to(self.device)
        return grouped_decode(self.model, device_labels, schedule, self.selector, noise)

    @torch.inference_mode()
    def decode(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """Images from tokens in raster order."""
        if output_type == "latent":
            return tokens
        assert isinstance(self.tokenizer, KLVAE | VQGAN)
        images = self.tokenizer.decode(tokens)  # (B, 3, H, W) in [0, 1]
        if output_type == "pt":
            return images
        pixels = images.permute(0, 2, 3, 1).cpu().numpy()
        if output_type == "np":
            return pixels
        return [Image.fromarray(image) for image in (pixels * 255).round().astype(np.uint8)]

    def _schedule(self, schedule: Schedule | None, guidance: float | Ramp | None) -> Schedule:
        schedule = schedule or self.schedule or self.default_schedule()
        if guidance is not None:
            schedule = schedule.with_guidance(usual_guidance(self.sampling.preset, guidance))
        check_fit(self.model, schedule)
        return schedule

    def _labels(self, labels: Labels | None, num_images: int | None) -> Tensor | None:
        classes = self.model.classes
        if not classes:
            if labels is not None:
                raise ValueError("this model is unconditional and takes no labels; say num_images=... instead")
            if not isinstance(num_images, int) or isinstance(num_images, bool) or num_images < 1:
                raise ValueError(f"num_images is {num_images!r}; say how many images to draw, at least 1")
            return None
        if labels is None:
            raise ValueError(f"this model draws {classes} classes; give labels, one from 0 to {classes - 1} an image")
        checked = self._label_tensor(labels)
        if num_images not in (None, len(checked)):
            raise ValueError(f"{len(checked)} labels were given but num_images is {num_images}; leave num_images out")
        outside = checked[(checked < 0) | (checked >= classes)]
        if len(outside):
            raise ValueError(f"label {outside[0].item()} is out of range; this model has classes 0 to {classes - 1}")
        return checked

    @staticmethod
    def _label_tensor(labels: Labels) -> Tensor:
        wrong = ValueError(f"labels are {labels!r}; expected an integer or a flat sequence of integers")
        if isinstance(labels, str) or (isinstance(labels, Sequence) and any(isinstance(x, bool) for x in labels)):
            raise wrong
        try:
            values = torch.as_tensor(labels).cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise wrong from error
        if not values.numel():
            raise ValueError("labels are empty; give at least one")
        if values.dtype == torch.bool or values.is_floating_point() or values.is_complex() or values.ndim > 1:
            raise wrong
        return values.reshape(-1).long()

    def _generators(
        self, batch: int, generator: torch.Generator | Sequence[torch.Generator] | None, seed: int | None
    ) -> list[torch.Generator]:
        if generator is None:
            if seed is None:
                raise ValueError("give a seed= or a generator=, so that the images can be drawn again")
            if not isinstance(seed, int | np.integer):
                raise ValueError(f"seed is {seed!r}; it must be an integer")
            return image_generators(int(seed), range(batch))
        if seed is not None:
            raise ValueError("give either seed= or generator=, not both")
        if isinstance(generator, torch.Generator):
            seeds = torch.randint(2**62, (batch,), generator=generator, device=generator.device).tolist()
            return [torch.Generator(generator.device).manual_seed(s) for s in seeds]
        generators = list(generator) if isinstance(generator, Sequence) else [generator]
        if not all(isinstance(g, torch.Generator) for g in generators):
            raise ValueError(f"generator is {generator!r}; give a torch.Generator, or one for each image")
        if len(generators) != batch:
            raise ValueError(f"{len(generators)} generators were given for {batch} images; give one for each")
        return generators

    @staticmethod
    def _finished(canvas: Canvas) -> Tensor:
        if not bool(canvas.sound.all()):
            images = (~canvas.sound).nonzero().flatten().tolist()
            raise FloatingPointError(
                f"image(s) {images} of the batch ran into values that are no numbers; use bfloat16 or float32 "
                f"instead of float16, or a lower guidance scale"
            )
        return canvas.raster()


def check_pair(model: Adapter, tokenizer: nn.Module) -> None:
    """Refuse a tokenizer that cannot read the model's tokens, before anything is sampled."""
    codes = getattr(model.config, "codes", None)
    drawn = f"{codes} codes" if codes is not None else f"{model.config.channels} latent channels"
    read = "neither codes nor latents"
    if isinstance(tokenizer, VQGAN):
        read = f"{tokenizer.config.codes} codes"
    elif isinstance(tokenizer, KLVAE):
        read = f"{tokenizer.config.latent_channels} latent channels"
    if drawn != read:
        raise ValueError(
            f"the model draws tokens of {drawn}, but {type(tokenizer).__name__} reads {read}; "
            f"give the tokenizer that the model was trained with"
        )


def model_folder(model: str | Path) -> Path:
    """The folder of a model that is on disk or comes with the package."""
    try:
        folder = weights.locate(model)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if folder is None:
        inside = f", or use one that does: {', '.join(weights.embedded())}" if weights.embedded() else ""
        raise CheckpointError(
            f"{model} is a published size whose weights do not come with the package; write its official file into "
            f"a folder with `recap convert FILE {model}`{inside}"
        )
    return folder


def load(model: str | Path, **options: Any) -> Pipeline:
    """A pipeline from a model folder or an embedded name; see `Pipeline.from_pretrained` for the options."""
    return Pipeline.from_pretrained(model, **options)


__all__ = ["CheckpointError", "Output", "Pipeline", "load"]
