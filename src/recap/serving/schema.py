"""What comes and goes as JSON; the OpenAPI description is made of this."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from recap.core.schedule import Ramp
from recap.serving.work import Wish

MOST = 4096  # of any count; the server's own limits are lower
Form = Literal["json", "png", "zip"]
Label = Annotated[int, Field(ge=0, le=MOST * MOST)] | Annotated[str, Field(min_length=1, max_length=100)]
Scale = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0, le=MOST)]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYGAAAAAEAAH2FzhVAAAAAElFTkSuQmCC"


class Asked(BaseModel):
    """How to draw; what is left out is the model's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    full: Annotated[int, Field(ge=1, le=MOST)] | None = Field(default=None, description="Full evaluations.")
    local: Steps | None = Field(default=None, description="Local evaluations; with `full`, none unless given.")
    total: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        default=None, description="All sub-steps, instead of `full` and `local`."
    )
    plain: Steps | None = Field(default=None, description="Groups at the start without local evaluations.")
    chain: Annotated[int, Field(ge=1, le=MOST)] = Field(
        default=1, description="Local evaluations that a group may have."
    )
    guidance: Scale | Annotated[list[Scale], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="Guidance scale, or its values at the first and the last token."
    )
    temperature: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = Field(
        default=None, description="Temperature of the draws."
    )

    def wish(self) -> Wish:
        scale = self.guidance
        return Wish(
            full=self.full,
            local=self.local,
            total=self.total,
            plain=self.plain,
            chain=self.chain,
            guidance=Ramp(*scale) if isinstance(scale, list) else scale,
            temperature=self.temperature,
        )


class Sample(Asked):
    """Images to draw: `first` to `first + num` of the run with this seed, as `recap sample` would draw them."""

    labels: Label | Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = Field(
        default=None, description="Classes by number or name, taken in turn; left out, they are spread over all."
    )
    num: Annotated[int, Field(ge=1, le=MOST)] | None = Field(
        default=None, description="How many images; left out, one for each label."
    )
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = Field(
        default=0, description="Image i of a seed is always the same."
    )
    first: Annotated[int, Field(ge=0, lt=2**31)] = Field(default=0, description="Index of the first image.")
    format: Form | None = Field(default=None, description="Form of the answer; left out, the header Accept decides.")
    timeout: Annotated[float, Field(ge=1, le=86400, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds to wait, at most those of the server."
    )

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"labels": [0, 3], "seed": 7, "full": 6, "local": 4, "guidance": 2.0}]},
    )

    def label_list(self) -> list[int | str] | None:
        return [self.labels] if isinstance(self.labels, int | str) else self.labels

    def count(self) -> int:
        return self.num if self.num is not None else max(1, len(self.label_list() or ()) - self.first)


class Edit(Sample):
    """A picture of which a part is drawn anew, in as many versions as asked for."""

    image: str = Field(description="A PNG, JPEG or WebP file as base64 text.")
    mask: str | None = Field(default=None, description="Likewise; white is drawn anew.")
    redraw: Annotated[list[Annotated[int, Field(ge=0, le=MOST)]], Field(min_length=4, max_length=4)] | None = Field(
        default=None, description="Instead of a mask: left, top, right, bottom in pixels of the model's image."
    )
    fit: bool = Field(default=False, description="Crop the picture, and its mask, to a square and scale it.")
    paste: bool = Field(default=False, description="Put the pixels that are not drawn anew back.")

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"image": PIXEL, "redraw": [0, 0, 2, 2], "labels": 1, "fit": True, "full": 1, "seed": 7}]
        },
    )


class Plan(Asked):
    """A schedule whose cost is asked for."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"full": 6, "local": 4, "guidance": 2.0}]}
    )


class Evaluations(BaseModel):
    """The schedule of a run in numbers."""

    full: int
    local: int
    plain: int
    guided: bool


class Picture(BaseModel):
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
    images: list[Picture]


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
    schedule: Evaluations
    limits: dict[str, float]


class Models(BaseModel):
    """What is served."""

    models: list[Model]


class Cost(BaseModel):
    """What one image costs by operations alone, against plain decoding in as many sub-steps."""

    model: str
    setting: str
    full: int
    local: int
    plain: int
    guided: bool
    tokens: list[int]
    groups: list[list[int]]
    flops: float
    flops_full: float
    flops_local: float
    flops_head: float
    flops_plain: float
    flops_plain_head: float
    local_over_full: float
    cache_bytes: int
    speedup: float


class State(BaseModel):
    """How the server is."""

    status: Literal["ok", "ready", "closing", "broken"]


class Problem(BaseModel):
    """Why there is no other answer: a word for programs; what came, what was expected and what to do, for people."""

    code: str
    message: str


class Failure(BaseModel):
    """Every answer that is none."""

    error: Problem


def refusal(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
