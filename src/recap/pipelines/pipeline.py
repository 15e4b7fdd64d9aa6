"""Labels in, images out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

import torch
from PIL import Image
from torch import Tensor, nn

from recap.checkpoints import CheckpointError, save_pretrained
from recap.core.noise import stream_key
from recap.core.options import SamplingOptions
from recap.core.presets import usual_guidance
from recap.core.protocols import Selector
from recap.core.schedule import Ramp, Schedule
from recap.core.start import check_fit
from recap.models.adapter import Adapter
from recap.pipelines.base import BATCH, Asked, ModelPipeline
from recap.pipelines.codec import ImageCodec
from recap.pipelines.editing import starts_of, tokens_of, variation
from recap.pipelines.inputs import Generators, Labels, batch_of, find_class, generators_of, labels_of
from recap.pipelines.loading import Parts, check_pair
from recap.pipelines.output import Output, collect, frames
from recap.runs.works import Done, Start, Work
from recap.tokenizers import VQGAN
from recap.view.frames import Frame
from recap.view.images import Picture

Callback = Callable[["Pipeline", int, int, dict[str, Any]], Any]


class Asking(TypedDict, total=False):
    """What every way of drawing takes.

    num_images: how many, where it is not one for each label. schedule: how, as text ("48+16", "64",
    "48+16:warmup=32,temperature=0.9"), as `SamplingOptions`, or a `Schedule` of one's own. generator: one for each
    image, or one from which a seed is drawn for each; without it, `seed` and the image's index give the randomness.
    guidance: a number for the family's usual guidance (a ramp from 1 for MAR, constant otherwise), or a `Ramp`.
    """

    num_images: int | None
    schedule: Asked | None
    generator: Generators | None
    seed: int | None
    guidance: float | Ramp | None


class Pipeline(ImageCodec, ModelPipeline):
    """A model, its tokenizer, and the grouped-decoding loop between them.

    `model` is a network of the library or an adapter; `selector` and `options` default to what suits its family.
    Nothing is moved or converted unless `.to()` says so; for `batch_size` see `ModelPipeline`.
    """

    modality = "images"

    def __init__(
        self,
        model: nn.Module | Adapter,
        tokenizer: nn.Module | None = None,
        *,
        selector: Selector | None = None,
        options: SamplingOptions | str | None = None,
        class_names: Sequence[str] | None = None,
        batch_size: int = BATCH,
    ) -> None:
        """`options` are this model's own, over the preset of its family. `class_names` has one name a class."""
        super().__init__(model, selector, batch_size)
        inside = getattr(self.model.module, "vqgan", None)  # an official object has one of another kind
        self.tokenizer = tokenizer or (inside if isinstance(inside, VQGAN) else None)
        if self.tokenizer is not None:
            check_pair(self.model, self.tokenizer)
        self.options = self.options_for(options)
        self.class_names = None if class_names is None else tuple(class_names)
        if self.class_names is not None and len(self.class_names) != self.model.classes:
            raise ValueError(
                f"{len(self.class_names)} class names were given for a model of {self.model.classes} classes; "
                f"give one for each"
            )

    @classmethod
    def from_parts(cls, parts: Parts, name: object) -> Self:
        """The pipeline of parts that belong together; `name` is for the error if they do not."""
        try:
            return cls(parts.net, parts.tokenizer, options=parts.about.options, class_names=parts.about.class_names)
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from error

    def save_pretrained(self, folder: str | Path, *, compact: bool = False) -> Path:
        """Write the model to `folder`, and its tokenizer to the sub-folder `tokenizer`."""
        about: dict[str, Any] = {"sampling": self.options.json()}
        if self.class_names is not None:
            about["class_names"] = list(self.class_names)
        folder = save_pretrained(self.model.module, folder, compact=compact, **about)
        if self.tokenizer is not None and self.tokenizer is not getattr(self.model.module, "vqgan", None):
            save_pretrained(self.tokenizer, folder / "tokenizer", compact=compact)
        return folder

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move to a device, and the model to a dtype; the tokenizer runs once an image and stays as it is."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        kept = {} if self.tokenizer is None else self.tokenizer.state_dict()
        self.model.module.to(device=device, dtype=dtype)
        if self.tokenizer is not None:
            # it may lie inside the model, and there and back would round it
            self.tokenizer.load_state_dict(kept, assign=True)
            self.tokenizer.to(device=device)
        return self.compile(self._asked_engine)  # which holds on to the addresses of weights

    def schedule(
        self, asked: Asked | None = None, known: int = 0, *, guidance: float | Ramp | None = None
    ) -> Schedule:
        """The schedule of a run that begins with `known` tokens: the model's own, or with changes, as in "48+16".

        The model's own numbers of evaluations shrink with the share of tokens that is left to decode; numbers that
        are given stay.
        """
        if isinstance(asked, Schedule):
            schedule = asked.knowing(known)
            if guidance is not None:
                schedule = schedule.with_guidance(usual_guidance(self.options.preset or "", guidance))
        else:
            schedule = self.options_for(asked, known, guidance).schedule(self.model.num_tokens - known, known)
        check_fit(self.model, schedule)
        return schedule

    def options_for(
        self, asked: str | SamplingOptions | None, known: int = 0, guidance: float | Ramp | None = None
    ) -> SamplingOptions:
        """The model's own options with what is asked for over them, for a run that begins with `known` tokens."""
        options = self.options if not known else self.options.shrunk(self.model.num_tokens - known, known)
        if asked is not None:
            options = options.override(SamplingOptions.from_text(asked) if isinstance(asked, str) else asked)
        return options if guidance is None else options.override(SamplingOptions(guidance=guidance))

    def works(
        self,
        labels: Labels | None = None,
        num_images: int | None = None,
        schedule: Asked | None = None,
        *,
        seed: int | None = None,
        first: int = 0,
        generator: Generators | None = None,
        guidance: float | Ramp | None = None,
        starts: Sequence[Start] | None = None,
        init: Tensor | Output | None = None,
        strength: float = 0.5,
    ) -> list[Work]:
        """One image to draw for each label or start, or `num_images` of them, where one of anything serves for all.

        Everything is checked here. With `seed` they are images `first`, `first + 1`, ... of that seed; a `generator`,
        or one for each, has its own randomness. `starts` say what of each image is known, and `init` is as in a call.
        """
        classes = labels_of(labels, self.model.classes)
        tokens = None if init is None else tokens_of(self.model, init)
        batch = batch_of(num_images, label=classes, start=tokens if starts is None else starts)
        if classes is not None:
            classes *= batch // len(classes)
        generators = generators_of(batch, generator, seed, first)
        if tokens is not None:
            generators = list(generators)
            starts = variation(self, tokens, strength, generators)
        begun: Sequence[Start | None] = starts or [None]
        counts = [0 if start is None else int((~start.masked).sum()) for start in begun]
        asked = SamplingOptions.from_text(schedule) if isinstance(schedule, str) else schedule
        order = (self.options if isinstance(asked, Schedule) else self.options_for(asked)).order
        schedules = {known: self.schedule(asked, known, guidance=guidance) for known in dict.fromkeys(counts)}
        return [
            Work(
                schedules[counts[row % len(counts)]],
                first + row,
                stream_key(own),
                None if seed is None else int(seed),
                None if classes is None else classes[row],
                order,
                begun[row % len(begun)],
            )
            for row, own in enumerate(generators)
        ]

    def trial(
        self, num: int, schedule: Asked | None = None, *, seed: int = 0, labels: Sequence[int] | None = None
    ) -> list[Work]:
        return self.works(labels, num if labels is None else None, schedule, seed=seed)

    def __call__(
        self,
        labels: Labels | None = None,
        *,
        init: Tensor | Output | None = None,
        strength: float = 0.5,
        output_type: str = "pil",
        callback_on_step_end: Callback | None = None,
        **asked: Unpack[Asking],
    ) -> Output:
        """Draw one image for each label, or as many as are asked for; the other arguments are those of `Asking`.

        init: tokens, one row or one for each image, or an earlier result, of which a share of `strength` is
        regenerated, at random. callback_on_step_end(pipe, step, decoded, {"canvas": canvas, "images": indices}) is
        called after every sub-step of the images that are drawn together; if it returns a dict with "tokens" in
        raster order, these take the place of what is decoded.
        """
        self.check_output(output_type)
        works = self.works(labels, init=init, strength=strength, **asked)
        return collect(self, works, output_type, callback_on_step_end)

    def edit(
        self,
        image: Picture | Sequence[Picture] | Output,
        mask: Picture | Sequence[Picture],
        labels: Labels | None = None,
        *,
        paste: bool = False,
        output_type: str = "pil",
        callback_on_step_end: Callback | None = None,
        **asked: Unpack[Asking],
    ) -> Output:
        """Draw the white part of `mask` anew and keep the tokens of all the rest, bit by bit.

        image: a PIL image, an array (h, w, 3), a tensor (3, h, w), a batch or list of them, or an earlier result,
        whose tokens are taken as they are. mask: likewise, without colours; white, 255 or True is redrawn, and a
        token is redrawn if any of its pixels is. Image, mask and labels are as many, or one for all; `num_images`
        asks for several versions. schedule: for the redrawn tokens; by default the model's own, with evaluations in
        proportion. paste: put the pixels that are not white back into the result, which by default is as the
        tokenizer draws it. A mask without white is refused; one that is all white is plain sampling. The rest is as
        in a call of the pipeline.
        """
        self.check_output(output_type)
        works = self.works(labels, starts=starts_of(self, image, mask, paste), **asked)
        return collect(self, works, output_type, callback_on_step_end)

    def stream(
        self, labels: Labels | None = None, *, starts: Sequence[Start] | None = None, **asked: Unpack[Asking]
    ) -> Iterator[Frame]:
        """A frame after every sub-step; the run waits for whoever looks at it, and ends when nobody does.

        The last frame's images are those that a call with the same arguments returns. Everything is checked before
        the first frame. With `starts` (`Pipeline.works`), images that begin with equally many known tokens.
        """
        works = self.works(labels, starts=starts, **asked)
        if len({work.schedule for work in works}) > 1:
            raise ValueError("these images begin with different numbers of known tokens; stream them one by one")
        return frames(self, works)

    def answer(self, result: Done) -> Image.Image:
        return result.image

    def label(self, name: str) -> int:
        """The number of a class by its name, or by a part of it that only one class has."""
        return find_class(name, self.class_names, self.model.classes)

    def name_of(self, label: int) -> str:
        """The name of a class by its number."""
        return self.class_names[label] if self.class_names else f"class {label}"

    def __repr__(self) -> str:
        model = self.model
        kind = f"{model.classes} classes" if model.classes else "unconditional"
        dtype = str(model.dtype).removeprefix("torch.")
        tokenizer = "no tokenizer" if self.tokenizer is None else type(self.tokenizer).__name__
        return (
            f"<Pipeline: {type(model.module).__name__}, {kind}, {model.num_tokens} tokens, {tokenizer}; "
            f"{dtype} on {self.device}, engine {self.engine}; options {self.options}>"
        )
