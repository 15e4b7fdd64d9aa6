"""What comes and goes as JSON; the OpenAPI description is made of this."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.models.registry import family_of
from recap.pipelines import Pipeline, TextPipeline
from recap.pipelines.text import LENGTH

MAX_COUNT = 4096  # of anything; the server's own limits are lower
MAX_TEXT = 2**16  # characters of a prompt
MAX_PROMPTS = 64  # of a request, and messages of a chat
OPTIONS = [field.name for field in fields(SamplingOptions)]

Word = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[int, Field(ge=0, le=MAX_COUNT**2)] | Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Prompt = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Ids = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1, max_length=MAX_COUNT)]


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
    block: Positive | None = Field(
        default=None,
        validation_alias=AliasChoices("block", "block_length"),
        description="Of text: tokens of a block; blocks are written from left to right.",
    )
    rows: Word | None = Field(default=None, description="Of text: what local evaluations recompute.")
    threshold: Number | None = Field(default=None, description="Of text: the confidence that is enough by itself.")
    top_k: Positive | None = Field(default=None, description="Of text: draw from so many of the likeliest tokens.")
    top_p: Number | None = Field(default=None, description="Of text: draw from the likeliest ones of this share.")
    confidence: Word | None = Field(default=None, description="Of text: what it means to be sure of a token.")

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
    seed: Seed = Field(default=0, description="Image i of a seed is always the same.")

    @property
    def label_list(self) -> list[int | str] | None:
        return [self.labels] if isinstance(self.labels, int | str) else self.labels

    def count(self, first: int = 0) -> int:
        """How many images are asked for, beginning with number `first`."""
        return self.num if self.num is not None else max(1, len(self.label_list or ()) - first)


class LengthRequest(PlanRequest):
    """A model and how it is sampled; a model of text writes so many tokens."""

    gen_length: Count | None = Field(
        default=None,
        description=f"Of text: tokens to write behind the prompt; {LENGTH} where nothing is said, or with masks in "
        f"the prompt none.",
    )


class ChatMessage(Request):
    """What somebody says in a chat."""

    role: Word
    content: Prompt


Chat = Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_PROMPTS)]


class Write(LengthRequest):
    """Texts to write: those of the run with this seed, as `recap write` would write them."""

    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=MAX_PROMPTS)] | None = Field(
        default=None, description="What a text begins with, or a list; left out, it begins from nothing."
    )
    messages: Chat | Annotated[list[Chat], Field(min_length=1, max_length=MAX_PROMPTS)] | None = Field(
        default=None, description="In the place of a prompt: a chat, or a list, for models with a chat template."
    )
    input_ids: Ids | Annotated[list[Ids], Field(min_length=1, max_length=MAX_PROMPTS)] | None = Field(
        default=None, description="In the place of a prompt: its ids, or a list of such lists."
    )
    num: Positive = Field(default=1, description="Texts to each prompt.")
    first: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="Index of the first text.")
    seed: Seed = Field(default=0, description="Text i of a seed is always the same.")
    eos_early_stop: bool = Field(default=True, description="Leave out what follows the end of a text.")

    @property
    def prompts(self) -> list[str | None]:
        """What each text is to follow, for people: of a chat what was said last, of ids nothing."""
        if self.messages is not None:
            return [chat[-1].content for chat in self.chats]
        if self.input_ids is not None:
            return [None] * (1 if isinstance(self.input_ids[0], int) else len(self.input_ids))
        return [self.prompt] if self.prompt is None or isinstance(self.prompt, str) else list(self.prompt)

    @property
    def chats(self) -> list[list[ChatMessage]]:
        """One chat, or several."""
        chats: Any = self.messages or []
        return [chats] if chats and isinstance(chats[0], ChatMessage) else chats

    def count(self, first: int = 0) -> int:
        """How many texts are asked for."""
        return self.num * len(self.prompts)


class Race(Write):
    """Texts to write by reuse, and beside it by plain decoding in as many sub-steps."""

    compare: bool = Field(default=True, description="Decode plainly too, with as many sub-steps.")


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
    tokens: int = Field(description="Tokens that are drawn; the others of an image or text were known.")

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


class WrittenText(BaseModel):
    """One text."""

    index: int
    prompt: int = Field(description="Which of the prompts it follows, counted from 0.")
    text: str = Field(description="What follows the prompt; all of it where there were masks in the prompt.")


class Written(BaseModel):
    """Texts, and what they were written with."""

    model: str
    seed: int
    schedule: Evaluations
    texts: list[WrittenText]


class Model(BaseModel):
    """A model that is served."""

    name: str
    modality: str = Field(description='"images" for /v1/sample and /v1/edit, or "text" for /v1/write.')
    family: str
    classes: int
    class_names: list[str] | None
    image_size: int | None = Field(description="Pixels of a side; none of text.")
    tokens: int = Field(description="Of an image, or the most that a text and its prompt may have.")
    gen_length: int | None = Field(description="Tokens that are written where nothing is said; none of images.")
    chat: bool = Field(description="Whether it takes messages.")
    device: str
    dtype: str
    engine: str
    sampling: dict[str, Any] = Field(description="The model's own sampling options.")
    schedule: Evaluations

    @classmethod
    def of(cls, name: str, pipe: Pipeline | TextPipeline) -> Self:
        about: dict[str, Any] = {}
        if isinstance(pipe, TextPipeline):
            length = min(LENGTH, pipe.language.longest)
            schedule = pipe.schedule(tokens=length)
            about = {"tokens": pipe.language.longest, "gen_length": length, "chat": pipe.chats}
            about |= {"class_names": None, "image_size": None}
        else:
            schedule = pipe.schedule()
            about = {"tokens": pipe.model.num_tokens, "gen_length": None, "chat": False}
            about |= {"class_names": pipe.class_names and list(pipe.class_names), "image_size": pipe.side}
        return cls(
            name=name,
            modality=pipe.modality,
            family=family_of(pipe.model.config).name,
            classes=pipe.model.classes,
            device=str(pipe.device),
            dtype=str(pipe.model.dtype).removeprefix("torch."),
            engine=pipe.engine,
            sampling=pipe.options.json(),
            schedule=Evaluations.of(pipe.options, schedule),
            **about,
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
