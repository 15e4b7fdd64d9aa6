"""The models on offer: described from their configurations, loaded when they are first drawn with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from recap.checkpoints.folder import config_from, read_config
from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.models.registry import build, family_of
from recap.pipelines import Pipeline
from recap.pipelines.labels import planned_labels
from recap.pipelines.loading import read_parts
from recap.runs.backoff import OutOfMemoryBackoff
from recap.runs.draw import backoff_for
from recap.runs.works import Start, Work
from recap.server.limits import ApiError, Limits


@dataclass(frozen=True, slots=True)
class Asked:
    """The images of a request, checked, and the options under which they are drawn."""

    works: tuple[Work, ...]
    options: SamplingOptions
    shrunk_from: str | None  # the model's own evaluations, where fewer are made because tokens are known

    @property
    def evaluations(self) -> dict[str, Any]:
        """What the answer says of the schedule."""
        schedule = self.works[0].schedule
        return {"options": self.options.text, "shrunk_from": self.shrunk_from, **numbers(schedule)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by its name; `blank` is its pipeline without weights, all that checking a request takes."""

    name: str
    blank: Pipeline
    load: Callable[[], Pipeline]
    device: str = "cpu"
    dtype: str = "float32"
    engine: str = "eager"

    @classmethod
    def read(cls, name: str, folder: Path, load: Callable[[Path], Pipeline], **about: str) -> Entry:
        """A model folder without its weights; one that cannot make images is refused."""
        parts = read_parts(folder, read=_blank)
        about_it = parts.about
        pipe = Pipeline(parts.net, parts.tokenizer, options=about_it.options, class_names=about_it.class_names)
        return cls(name, pipe, lambda: load(folder), **about).checked()

    @classmethod
    def of(cls, name: str, pipe: Pipeline) -> Entry:
        """A model in memory."""
        dtype = str(pipe.model.dtype).removeprefix("torch.")
        return cls(name, pipe, lambda: pipe, str(pipe.device), dtype, pipe.engine).checked()

    def checked(self) -> Entry:
        """The entry itself, if it can make images."""
        if self.blank.tokenizer is None:
            raise ValueError(
                f"{self.name} has no tokenizer to make images with; put one into its sub-folder `tokenizer`"
            )
        return self

    def asked(
        self,
        limits: Limits,
        options: SamplingOptions,
        *,
        labels: list[int | str] | None,
        num: int,
        seed: int = 0,
        first: int = 0,
        start: Start | None = None,
    ) -> Asked:
        """The works that a request means, or a refusal; too large a request is refused before anything is made."""
        pipe, known = self.blank, 0 if start is None else int((~start.masked).sum())
        effective = pipe.options_for(options, known)
        limits.check(num, effective)
        if start is not None and pipe.model.classes and labels is None:
            raise ValueError(f"{self.name} draws {pipe.model.classes} classes; say with labels what is to be drawn")
        planned = planned_labels(labels, num, pipe.class_names, pipe.model.classes, first=first)
        starts = None if start is None else [start] * num
        count = num if planned is None else None
        works = pipe.works(planned, count, options, seed=seed, first=first, starts=starts)
        own = evaluations_of(pipe.options)
        shrunk = known and options.full is None and evaluations_of(effective) != own
        return Asked(tuple(works), effective, own if shrunk else None)

    def plain(self, asked: Asked) -> tuple[Work, ...]:
        """The same images without reuse, with as many sub-steps."""
        work = asked.works[0]
        schedule = asked.options.plain().schedule(work.schedule.tokens, work.schedule.known)
        return tuple(replace(work, schedule=schedule) for work in asked.works)

    def about(self) -> dict[str, Any]:
        """What `/v1/models` says of it."""
        pipe = self.blank
        return {
            "name": self.name,
            "family": family_of(pipe.model.config).name,
            "classes": pipe.model.classes,
            "class_names": None if pipe.class_names is None else list(pipe.class_names),
            "image_size": pipe.side,
            "tokens": pipe.model.num_tokens,
            "device": self.device,
            "dtype": self.dtype,
            "engine": self.engine,
            "sampling": pipe.options.json(),
            "schedule": {"options": pipe.options.text, **numbers(pipe.schedule())},
        }


def numbers(schedule: Schedule) -> dict[str, int | bool]:
    """The evaluations of a schedule."""
    return {
        "full": schedule.full,
        "local": schedule.local,
        "warmup": schedule.warmup,
        "chain": max(1, *(group.local for group in schedule)),
        "guided": schedule.guided,
        "tokens": schedule.tokens,
    }


def evaluations_of(options: SamplingOptions) -> str:
    """The numbers of evaluations alone, as in "48+16:warmup=32"."""
    return SamplingOptions(full=options.full, local=options.local, warmup=options.warmup, chain=options.chain).text


def _blank(folder: str | Path) -> nn.Module:
    """The network of a folder, all shapes and no memory."""
    return build(config_from(read_config(Path(folder)), folder), meta=True)


class ModelCache:
    """Models by name, the default first; a few of them in memory.

    Only the thread that draws asks for pipelines, so nothing needs a lock.
    """

    def __init__(self, entries: Iterable[Entry], limits: Limits | None = None) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.limits = limits or Limits()
        if not self.entries:
            raise ValueError("there is no model to draw with; name a folder with --model")
        self.default = next(iter(self.entries))
        self._loaded: OrderedDict[str, tuple[Pipeline, OutOfMemoryBackoff]] = OrderedDict()
        for entry in self.entries.values():
            steps = len(entry.blank.schedule().steps)
            if steps > self.limits.max_steps:
                raise ValueError(
                    f"--max-steps is {self.limits.max_steps} but {entry.name}'s own schedule has {steps}; "
                    f"allow at least as many"
                )

    def entry(self, name: str | None) -> Entry:
        """The model that a request names, or the default."""
        found = self.entries.get(name or self.default)
        if found is None:
            assert name is not None
            near = get_close_matches(name.lower(), self.entries, n=1, cutoff=0.0)[0]
            known = ", ".join(self.entries)
            raise ApiError(422, "model", f"no model is called {name!r}; did you mean {near!r}? There are {known}")
        return found

    def loaded(self, entry: Entry) -> tuple[Pipeline, OutOfMemoryBackoff]:
        """A model in memory and how many images fit with it; the one used longest ago makes room."""
        if entry.name not in self._loaded:
            while len(self._loaded) >= self.limits.max_models:
                self._loaded.popitem(last=False)
            pipe = entry.load()
            pipe.progress, pipe.batch_size = False, self.limits.batch
            self._loaded[entry.name] = pipe, backoff_for(pipe)
        self._loaded.move_to_end(entry.name)
        return self._loaded[entry.name]
