"""What the page asks for, as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from recap.core.schedule import Ramp
from recap.serving.schema import MOST, Label, Scale, Steps
from recap.serving.work import Wish


class Plan(BaseModel):
    """A model and a schedule; what is left out is the model's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="A name of /api/models; left out, the default."
    )
    full: Annotated[int, Field(ge=1, le=MOST)] | None = Field(default=None, description="Full evaluations.")
    local: Steps | None = Field(default=None, description="Local evaluations; with `full`, none unless given.")
    chain: Annotated[int, Field(ge=1, le=MOST)] = Field(
        default=1, description="Local evaluations that a group may have."
    )
    guidance: Scale | Annotated[list[Scale], Field(min_length=2, max_length=2)] | None = Field(
        default=None, description="Guidance scale, or its values at the first and the last token."
    )

    def wish(self) -> Wish:
        scale = self.guidance
        return Wish(
            full=self.full,
            local=self.local,
            chain=self.chain,
            guidance=Ramp(*scale) if isinstance(scale, list) else scale,
        )


class Generate(Plan):
    """Images to draw, by reuse and beside it by plain decoding in as many sub-steps."""

    labels: Annotated[list[Label], Field(min_length=1, max_length=MOST)] | None = Field(
        default=None, description="Classes by number or name, taken in turn; left out, they are spread over all."
    )
    num: Annotated[int, Field(ge=1, le=MOST)] = Field(default=1, description="How many images.")
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = Field(
        default=0, description="Image i of a seed is always the same."
    )
    compare: bool = Field(default=True, description="Decode plainly too, with as many sub-steps.")
    drift: bool = Field(default=False, description="Hold every local evaluation against an exact one.")


class Edit(Generate):
    """A picture of which a part is drawn anew."""

    image: str = Field(description="A PNG, JPEG or WebP file as base64 text; its middle is what is drawn in.")
    mask: str = Field(description="Likewise, of the same size; white is drawn anew.")
    paste: bool = Field(default=False, description="Put the pixels that are not drawn anew back.")
