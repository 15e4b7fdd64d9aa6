"""What a request means: works, everything checked that can be checked before it waits."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from recap.core.options import SamplingOptions
from recap.pipelines import Pipeline, TextPipeline
from recap.pipelines.editing import starts_of
from recap.pipelines.inputs import planned_labels
from recap.pipelines.text import LENGTH
from recap.runs.works import Start, Work
from recap.server import schema
from recap.server.guard import TEXT, USUAL, ApiError
from recap.server.limits import Limits
from recap.view.images import Opener, box_mask, open_pair
from recap.view.pictures import SizeCheck, UnreadablePicture, open_picture

MOST_PICTURES = 2  # of a request
PICTURE = re.compile(rb'"[A-Za-z0-9+/=\\]{1024,}+"')  # base64 as it stands in JSON, where a slash may be escaped
FORMATS = ("PNG", "JPEG", "WEBP")  # of pictures that come from outside; each other one is one more parser to trust


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The images or texts of a request, and the options under which they are drawn."""

    request: schema.DrawRequest | schema.Write
    model: str
    pipe: Pipeline | TextPipeline
    works: list[Work]
    options: SamplingOptions
    files: Mapping[str, bytes] = field(default_factory=dict)  # that came with it, as the command line names them

    @property
    def evaluations(self) -> schema.Evaluations:
        """What the answer says of the schedule."""
        return schema.Evaluations.of(self.options, self.works[0].schedule)

    def name_of(self, work: Work) -> str | None:
        """The name of an image's class, where it has one."""
        names = self.pipe.class_names
        return None if names is None or work.label is None else names[work.label]

    @property
    def prompts(self) -> list[str | None]:
        """What each text follows, in words."""
        request = self.request
        return (
            [said for said in request.prompts for _ in range(request.num)]
            if isinstance(request, schema.Write)
            else []
        )

    def plain(self) -> list[Work]:
        """The same images or texts without reuse, with as many sub-steps."""
        kinds = dict.fromkeys((work.schedule.tokens, work.schedule.known) for work in self.works)
        plain = {kind: self.options.plain(kind[0]).schedule(*kind) for kind in kinds}
        return [replace(work, schedule=plain[work.schedule.tokens, work.schedule.known]) for work in self.works]


class PendingRequest:
    """A request in the queue; `done` becomes its images or texts, or the refusal that came instead."""

    def __init__(self, asked: CheckedRequest) -> None:
        self.asked = asked
        self.waiting = list(asked.works)  # not begun yet
        self.finished: dict[Work, Any] = {}
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def put(self, work: Work, answer: Any) -> None:
        """One of the images or texts, as it is finished."""
        self.finished[work] = answer
        if not self.done.done() and len(self.finished) == len(self.asked.works):
            self.done.set_result([self.finished[work] for work in self.asked.works])

    def fail(self, refused: ApiError) -> None:
        if not self.done.done():
            self.done.set_exception(refused)

    def moved(self, position: int) -> None:
        """Its place in the queue is another one now, 1 being next."""


Served = Mapping[str, Pipeline | TextPipeline]


def parsed(body: bytes) -> Any:
    """A body as JSON; all that is no picture must be as short as a request without any."""
    if len(body) > TEXT and (text := len(PICTURE.sub(b'""', body, MOST_PICTURES))) > TEXT:
        message = f"the body has {text} bytes beside its pictures, but {TEXT} are allowed; send less"
        raise ApiError(413, "body", message)
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise ApiError(400, "json", f"the body is no JSON ({error.msg}); send an object") from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, *USUAL[400]) from error


def read(models: Served, limits: Limits, request: schema.PlanRequest) -> CheckedRequest:
    """The works that a request means, or a refusal; too large a request is refused before anything is made."""
    name, pipe = model_of(models, request)
    if isinstance(pipe, TextPipeline):
        return _texts(name, pipe, limits, request)
    if getattr(request, "gen_length", None) is not None:
        raise ValueError(f"gen_length is for models of text, and {name} draws images; leave it out")
    draw = request if isinstance(request, schema.DrawRequest) else schema.DrawRequest(num=1)
    first = request.first if isinstance(request, schema.Answer) else 0
    given, labels, count = request.options(), draw.label_list, draw.count(first)
    start, files = None, dict[str, bytes]()
    if isinstance(draw, schema.Redraw) and (draw.image is not None or draw.mask is not None):
        start, files = _start(pipe, draw, limits)
        if pipe.model.classes and labels is None:
            raise ValueError(f"{name} draws {pipe.model.classes} classes; say with labels what is to be drawn")
    if first and labels is None and pipe.model.classes:
        message = f"labels are left out, and which they are depends on how many images a run has; with first={first} "
        raise ValueError(f"{message}say them, so that every piece of a run has the same")
    known = 0 if start is None else int((~start.masked).sum())
    options = pipe.options_for(given, known)
    check_steps(limits, (options.full or 0) + (options.local or 0), "an image")
    planned = planned_labels(labels, count, pipe.class_names, pipe.model.classes, first=first)
    starts = None if start is None else [start]
    works = pipe.works(planned, count, given, seed=draw.seed, first=first, starts=starts)
    return CheckedRequest(draw, name, pipe, works, options, files)


def model_of(models: Served, request: schema.PlanRequest) -> tuple[str, Pipeline | TextPipeline]:
    """The model that a request names, or the first that can do what it asks for."""
    kind = None  # to predict what one costs, any will do
    if isinstance(request, schema.DrawRequest | schema.Write):
        kind = "text" if isinstance(request, schema.Write) else "images"
    able = [name for name, pipe in models.items() if kind in (None, pipe.modality)]
    if request.model is None and able:
        return able[0], models[able[0]]
    if request.model is not None and request.model not in models:
        raise ApiError(422, "model", f"no model is called {request.model!r}; there are {', '.join(models)}")
    if request.model not in able:
        does, asks = ("writes text", "/v1/write") if kind == "images" else ("draws images", "/v1/sample")
        which = "every model here" if request.model is None else request.model
        can = f", or one of {', '.join(able)}" if able else ""
        raise ApiError(422, "model", f"{which} {does}; ask {asks} for it{can}")
    return request.model, models[request.model]


def check_steps(limits: Limits, steps: int, noun: str) -> None:
    if steps > limits.max_steps:
        message = f"{steps} evaluations {noun} were asked for, but {limits.max_steps} are allowed; ask for less"
        raise ApiError(422, "limit", message)


def _texts(name: str, pipe: TextPipeline, limits: Limits, request: schema.PlanRequest) -> CheckedRequest:
    """The texts that a request means; to predict what one costs, one without a prompt."""
    write = request if isinstance(request, schema.Write) else schema.Write()
    length = request.gen_length if isinstance(request, schema.LengthRequest) else None
    if write is not request:
        length = min(LENGTH, pipe.language.longest) if length is None else length
    options = pipe.options_for(request.options())
    check_steps(limits, (options.full or 0) + (options.local or 0), "a text")  # again once their number is known
    works = pipe.works(
        write.prompt,
        messages=[[message.model_dump() for message in chat] for chat in write.chats] or None,
        input_ids=write.input_ids,
        gen_length=length,
        num_texts=write.num,
        schedule=options,
        seed=write.seed,
        first=write.first,
        eos_early_stop=write.eos_early_stop,
    )
    for work in works:
        check_steps(limits, len(work.schedule.steps), "a text")
    return CheckedRequest(write, name, pipe, works, options)


def _start(pipe: Pipeline, asked: schema.Redraw, limits: Limits) -> tuple[Start, dict[str, bytes]]:
    """A picture in the model's size, and what to draw anew: the white of a mask, or a box of the model's pixels."""
    if (asked.mask is None) == (asked.redraw is None) or asked.image is None:
        raise ValueError('say what to draw anew of an "image" with either "mask" or "redraw", not both or neither')
    side, files = pipe.side, dict[str, bytes]()

    def opener(name: str, data: str) -> Opener:
        return lambda check: picture(data, name, limits.max_pixels, files, check)

    over = None if asked.mask is None else opener("mask", asked.mask)
    image, white = open_pair(opener("image", asked.image), over, side, asked.fit)
    white = box_mask(side, *asked.redraw or ()) if white is None else white.convert("L")
    return starts_of(pipe, image, white, asked.paste)[0], files


def picture(
    data: str, name: str, most: int, files: dict[str, bytes], check: SizeCheck = lambda *_: None
) -> Image.Image:
    """The upright picture in base64 text, the size checked before any pixel is unpacked; its file goes to `files`."""

    def small(size: tuple[int, int], form: str) -> None:
        if size[0] * size[1] > most:
            raise _unusable(name, f"has {size[0]} x {size[1]} pixels, more than the {most} allowed here")
        check(size, form)
        files[f"{name}.{form.lower()}"] = file

    try:
        file = base64.b64decode(data, validate=True)
    except ValueError as error:
        raise _unusable(name, f"is no base64 ({error})") from error
    try:
        return open_picture(io.BytesIO(file), name, upright=True, formats=FORMATS, check=small)
    except UnreadablePicture as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise _unusable(name, f"has more than the {most} pixels allowed here") from error
        raise _unusable(name, f"({len(file)} bytes) is damaged or no picture") from error


def _unusable(name: str, what: str) -> ApiError:
    return ApiError(422, "picture", f"the {name} {what}; send a whole {', '.join(FORMATS)} file as base64 text")
