"""The models on offer: described from their configurations, loaded when they are first drawn with."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from recap.checkpoints.folder import config_from, read_config
from recap.core.presets import usual_guidance
from recap.core.schedule import Ramp, Schedule
from recap.loading import read_parts
from recap.models.zoo import build, family_of
from recap.pipeline import Pipeline
from recap.serving.limits import Refused
from recap.serving.work import Wish, schedule_of
from recap.studio.limits import Limits

Load = Callable[[Path], Pipeline]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by its name; `blank` is its pipeline without weights, all that checking a request takes."""

    name: str
    folder: Path
    blank: Pipeline

    @property
    def grid(self) -> int:
        """Tokens along one side."""
        return math.isqrt(self.blank.model.num_tokens)

    def about(self, limits: Limits) -> dict[str, Any]:
        """What `/api/models` says of it."""
        pipe = self.blank
        own = schedule_of(pipe, Wish(), limits)
        return {
            "name": self.name,
            "family": family_of(pipe.model.config).name,
            "classes": pipe.model.classes,
            "class_names": None if pipe.class_names is None else list(pipe.class_names),
            "side": pipe.side,
            "grid": self.grid,
            "tokens": pipe.model.num_tokens,
            "own": {
                "full": own.full,
                "local": own.local,
                "chain": max(1, *(group.local for group in own)),
                "guidance": scale_of(pipe, own),
            },
        }


def scale_of(pipe: Pipeline, own: Schedule) -> float | list[float] | None:
    """The guidance of a model's own schedule: a number, or its values at the first and the last token."""
    if not pipe.model.guidable:
        return None
    given = pipe.sampling.guidance
    if given is not None:
        scale = usual_guidance(pipe.sampling.preset, given)
        return list(scale) if isinstance(scale, Ramp) else scale
    last = own.steps[-1].guidance
    return last if own.steps[0].guidance == last else [1.0, last]  # the ramps of the presets begin at 1


class Shelf:
    """Models by name, the default first; a few of them in memory.

    Only the thread that draws asks for pipelines, so nothing needs a lock.
    """

    def __init__(self, folders: Mapping[str, Path], load: Load, limits: Limits) -> None:
        self.entries = {name: described(name, folder) for name, folder in folders.items()}
        if not self.entries:
            raise ValueError("there is no model to draw with; name a folder with --model")
        self.default = next(iter(self.entries))
        self._load, self._most = load, limits.max_models
        self._loaded: OrderedDict[str, Pipeline] = OrderedDict()

    def entry(self, name: str | None) -> Entry:
        """The model that a request names, or the default."""
        found = self.entries.get(name or self.default)
        if found is None:
            assert name is not None
            near = get_close_matches(name.lower(), self.entries, n=1, cutoff=0.0)[0]
            known = ", ".join(self.entries)
            raise Refused(422, "model", f"no model is called {name!r}; did you mean {near!r}? There are {known}")
        return found

    def pipeline(self, name: str) -> Pipeline:
        """The pipeline of a model, read if it is not in memory; the one used longest ago makes room."""
        if name not in self._loaded:
            while len(self._loaded) >= self._most:
                self._loaded.popitem(last=False)
            pipe = self._load(self.entries[name].folder)
            pipe.progress = False
            self._loaded[name] = pipe
        self._loaded.move_to_end(name)
        return self._loaded[name]


def described(name: str, folder: Path) -> Entry:
    """A model folder without its weights; one that cannot make images is refused."""
    parts = read_parts(folder, read=blank)
    pipe = Pipeline(
        parts.net,
        parts.tokenizer,
        setting=parts.setting,
        sampling=parts.about.sampling,
        class_names=parts.about.class_names,
    )
    if pipe.tokenizer is None:
        raise ValueError(f"{name} has no tokenizer to make images with; put one into its sub-folder `tokenizer`")
    return Entry(name, folder, pipe)


def blank(folder: str | Path) -> nn.Module:
    """The network of a folder, all shapes and no memory."""
    return build(config_from(read_config(Path(folder)), folder), meta=True)
