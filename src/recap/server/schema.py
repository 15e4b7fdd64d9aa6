"""What comes and goes as JSON; the OpenAPI description is made of this."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.models.registry import family_of
from recap.pipelines import Pipeline

MAX_COUNT = 4096  # of anything; the server's own limits are lower
OPTIONS = [field.name for field in fields(SamplingOptions)]

Word = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[int, Field(ge=0, le=MAX_COUNT**2)] | Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class Request(BaseModel):
    """Fields are of the very type that is expected, and unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class PlanRequest(Request):
    """A model and how it is sampled; what is left out is the model's own."""

    model: Word | None = Field(default=None, description="A name of /v1/models; left out, the default.")
    schedule: Word | None = Field(default=None, description='Sampling options as text, as in "48+16:warmup=32".')
    preset: Word | None = Field(default=None, description="Published preset to follow.")
    full: Positive | None = Field(default=None, description="Full evaluations.")
    local: Count | None = Field(default=None, description="Local evaluations; with `full`, none unless given.")
    warmup: Count | None = Field(default=None, description="Groups at the start without local evaluations.")
    chain: Positive | None = Field(default=None, description="Local evaluations that a group may have, 1 by default.")
    guidance: Number | Annotated[list[Number], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="Guidance scale, or its values at the first and the last token."
    )
    temperature: Number | None = Field(default=None, description="Temperature of the draws.")
    choice_temperature: Number | None = Field(default=None, description="Temperature of the choice of positions.")
    head_steps: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="Diffusion steps after full and after local evaluations."
    )
    solver: Word | None = Field(default=None, description="How a diffusion head takes its steps.")
    order: Word | None = Field(default=None, description="In which order positions are decoded.")
    target: Number | None = Field(
        default=None, description="Rows of a target set, in multiples of what is committed."
    )
    coupled: bool | None = Field(default=None, description="The same random numbers when a position is drawn again.")

    def options(self) -> SamplingOptions:
        """The sampling options that are given, as text or alone."""
        said = {} if self.schedule is None else SamplingOptions.from_text(self.schedule).json()
        alone = {name: getattr(self, name) for name in OPTIONS if getattr(self, name) is not None}
        both = sorted(said.keys() & alone.keys())
        if both:
            raise ValueError(f"schedule {self.schedule!r} says {both[0]} already; leave one of them out")
        return SamplingOptions.from_json(said | alone)


class DrawRequest(PlanRequest):
    """Images to draw: those of the run with this seed, as `recap sample` would draw them."""

    labels: Label | Annotated[list[Label], Field(min_length=1, max_length=MAX_COUNT)] | None = Field(
        default=None, description="Classes by number or name, taken in turn; left out, they are spread over all."
    )
    num: Positive | None = Field(default=None, description="How many images; left out, one for each label.")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = Field(
        default=0, description="Image i of a seed is always the same."
    )

    @property
    def label_list(self) -> list[int | str] | None:
        return [self.labels] if isinstance(self.labels, int | str) else self.labels

    def count(self, first: int = 0) -> int:
        """How many images are asked for, beginning with number `first`."""
        return self.num if self.num is not None else max(1, len(self.label_list or ()) - first)


class Redraw(DrawRequest):
    """A picture of which a part is drawn anew, in as many versions as asked for."""

    image: str | None = Field(default=None, description="A PNG, JPEG or WebP file as base64 text.")
    mask: str | None = Field(default=None, description="Likewise, of the same size; white is drawn anew.")
    redraw: Annotated[list[Count], Field(min_length=4, max_length=4)] | None = Field(
        default=None, description="Instead of a mask: left, top, right, bottom in pixels of the model's image."
    )
    fit: bool = Field(default=False, description="Crop the picture, and its mask, to a square and scale it.")
    paste: bool = Field(default=False, description="Put the pixels that are not drawn anew back.")


class Answer(Request):
    """Which part of a run is wanted, and how the images are to be given."""

    first: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="Index of the first image.")
    format: Literal["json", "png", "zip"] = Field(
        default="json", description="JSON with base64 PNGs, one PNG, or a zip of PNGs."
    )


class Sample(Answer, DrawRequest):
    """Images to draw: `first` to `first + num` of the run with this seed, as `recap sample` would draw them."""


class Edit(Answer, Redraw):
    """A picture of which a part is drawn anew: versions `first` to `first + num`."""

    image: str = Field(description="A PNG, JPEG or WebP file as base64 text.")


class Compare(Redraw):
    """Images to draw, or with a picture to edit, by reuse and beside it by plain decoding in as many sub-steps."""

    compare: bool = Field(default=True, description="Decode plainly too, with as many sub-steps.")


class Evaluations(BaseModel):
    """The schedule of a run in numbers."""

    options: str = Field(description="All of it as text, which the field `schedule` takes.")
    full: int
    local: int
    warmup: int
    chain: int = Field(description="Local evaluations that a group has at most.")
    guided: bool
    tokens: int = Field(description="Tokens that are drawn; the others of an image were known.")

    @classmethod
    def of(cls, options: SamplingOptions, schedule: Schedule) -> Self:
        numbers = {name: getattr(schedule, name) for name in ("full", "local", "warmup", "guided", "tokens")}
        return cls(options=options.text, chain=max(1, *(group.local for group in schedule)), **numbers)


class EncodedImage(BaseModel):
    """One image."""

    index: int
    label: int | None
    name: str | None
    png: str = Field(description="The PNG file as base64 text.")


class Drawn(BaseModel):
    """Images, and what they were drawn with."""

    model: str
    seed: int
    schedule: Evaluations
    images: list[EncodedImage]


class Model(BaseModel):
    """A model that is served."""

    name: str
    family: str
    classes: int
    class_names: list[str] | None
    image_size: int
    tokens: int
    device: str
    dtype: str
    engine: str
    sampling: dict[str, Any] = Field(description="The model's own sampling options.")
    schedule: Evaluations

    @classmethod
    def of(cls, name: str, pipe: Pipeline) -> Self:
        return cls(
            name=name,
            family=family_of(pipe.model.config).name,
            classes=pipe.model.classes,
            class_names=None if pipe.class_names is None else list(pipe.class_names),
            image_size=pipe.side,
            tokens=pipe.model.num_tokens,
            device=str(pipe.device),
            dtype=str(pipe.model.dtype).removeprefix("torch."),
            engine=pipe.engine,
            sampling=pipe.options.json(),
            schedule=Evaluations.of(pipe.options, pipe.schedule()),
        )


class Models(BaseModel):
    """What is served, and how much of it at a time."""

    default: str
    models: list[Model]
    limits: dict[str, float]
    version: str


class PlanAnswer(BaseModel):
    """What one image costs by operations alone, against plain decoding in as many sub-steps."""

    model: str
    schedule: Evaluations
    groups: list[list[int]] = Field(description="The tokens of every sub-step, group by group.")
    flops: float
    flops_plain: float
    cache_bytes: int
    speedup: float


class Problem(BaseModel):
    """Why there is no other answer: a word for programs; what came, what was expected and what to do, for people."""

    code: str
    message: str


class Failure(BaseModel):
    """Every answer that is none."""

    error: Problem
