"""A request as work to do: everything checked that can be checked before it waits."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

from recap.core.schedule import Schedule
from recap.serving.limits import Refused, picture
from recap.serving.work import Start, Wish, Work, labels_of, schedule_of, start_of
from recap.studio.limits import Limits
from recap.studio.models import Entry, Shelf
from recap.studio.schema import Edit, Generate


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of drawing the images of a job: its name, its schedule, and the images."""

    name: str  # "plain" or "reused"
    works: tuple[Work, ...]

    @property
    def schedule(self) -> Schedule:
        return self.works[0].schedule

    @property
    def kinds(self) -> list[str]:
        """The evaluation that each sub-step draws from."""
        return [kind for group in self.schedule for kind in ("full", *["local"] * group.local)]


@dataclass(frozen=True, slots=True)
class Upload:
    """The files of a request to edit, as they came."""

    image: bytes
    mask: bytes
    paste: bool


@dataclass(frozen=True, slots=True)
class Job:
    """The images that a visitor asked for, in one or two lanes."""

    entry: Entry
    asked: Generate
    labels: tuple[int | None, ...]
    lanes: tuple[Lane, ...]
    upload: Upload | None = None

    def names(self) -> list[dict[str, int | str | None] | None]:
        """Label and name of each image's class."""
        names = self.entry.blank.class_names
        return [
            None if label is None else {"label": label, "name": None if names is None else names[label]}
            for label in self.labels
        ]


def prepared(shelf: Shelf, limits: Limits, asked: Generate) -> Job:
    """The job that a request means; bad wishes are refused with a ValueError or a `Refused`."""
    entry = shelf.entry(asked.model)
    pipe = entry.blank
    if asked.num > limits.max_images:
        raise Refused(
            422,
            "limit",
            f"{asked.num} images were asked for, but {limits.max_images} are allowed at a time; ask for fewer",
        )
    if isinstance(asked, Edit) and pipe.model.classes and asked.labels is None:
        raise ValueError(f"{entry.name} draws {pipe.model.classes} classes; say with labels what is to be drawn")
    labels = labels_of(pipe, asked.labels, 0, asked.num)
    start, upload = uploaded(entry, limits, asked) if isinstance(asked, Edit) else (None, None)
    known = 0 if start is None else int((~start.masked).sum())
    wish = asked.wish()
    schedule = schedule_of(pipe, wish, limits, known)

    def lane(name: str, schedule: Schedule) -> Lane:
        return Lane(
            name, tuple(Work(schedule, label, asked.seed, index, start) for index, label in enumerate(labels))
        )

    if not schedule.local:
        lanes = [lane("plain", schedule)]
    else:
        lanes = [lane("reused", schedule)]
        if asked.compare:
            lanes.insert(0, lane("plain", schedule_of(pipe, plainly(wish, schedule), limits, known)))
    return Job(entry, asked, tuple(labels), tuple(lanes), upload)


def plainly(wish: Wish, schedule: Schedule) -> Wish:
    """The same wish decoded plainly, with as many sub-steps as a schedule has."""
    return replace(wish, full=len(schedule.steps), local=0, plain=None, total=None, chain=1)


def uploaded(entry: Entry, limits: Limits, asked: Edit) -> tuple[Start, Upload]:
    """The picture and the mask of a request."""
    mask, image = (picture(getattr(asked, name), name, limits.max_pixels) for name in ("mask", "image"))
    start = start_of(entry.blank, image, mask, None, fitted=True, paste=asked.paste)
    return start, Upload(base64.b64decode(asked.image), base64.b64decode(asked.mask), asked.paste)
