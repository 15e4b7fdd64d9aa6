"""Small models of all three families, with random weights under which no part is idle."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw, Known
from recap.core.decode import grouped_decode
from recap.core.noise import Noise, PositionNoise, Purpose, image_generators
from recap.core.protocols import Selector
from recap.core.schedule import Schedule
from recap.models.adapter import Adapter, ModelWrapper
from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.models.registry import adapt, build, randomize

CONFIGS: dict[str, Any] = {
    "mar": MARConfig(32, 2, 3, heads=4, head_depth=2, head_width=48, num_tokens=16, channels=4, buffer=3, classes=5),
    "mage": MAGEConfig(32, 3, 2, 4, 2, num_tokens=16, codes=20, class_slots=4, fake_class=22, patch=0, vqgan=None),
    "maskgit": MaskGITConfig(32, 4, 4, num_tokens=16, codes=20, classes=5),
}
FAMILIES = tuple(CONFIGS)


def model(family: str, seed: int = 0, **changes: Any) -> Adapter:
    return adapt(randomize(build(replace(CONFIGS[family], **changes)), seed))


class Spied(ModelWrapper):
    """A model that says what it is asked: `note("full" or "local", features)` is called after every evaluation."""

    def __init__(self, model: Adapter, note: Callable[[str, Tensor], object]) -> None:
        super().__init__(model)
        self.note = note

    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        features = self.model.full(canvas, cache, wanted)
        self.note("full", features)
        return features

    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        features = self.model.local(canvas, cache, rows, wanted)
        self.note("local", features)
        return features


def labels(adapter: Adapter, batch: int) -> Tensor | None:
    return torch.arange(batch) % adapter.classes if adapter.classes else None


def noise(batch: int, seed: int = 0, first: int = 0) -> Noise:
    return Noise(image_generators(seed, range(first, first + batch)), "cpu")


def numbers(batch: int, count: int, seed: int = 0, device: str = "cpu") -> PositionNoise:
    """The numbers of the first `count` positions in a draw."""
    positions = torch.arange(count, device=device).repeat(batch, 1)
    return Noise(image_generators(seed, range(batch)), device).at(1, Purpose.VALUES, positions)


def canvas(adapter: Adapter, batch: int = 2, branches: int | None = None, seed: int = 0) -> Canvas:
    """An empty canvas whose rows arrive at random positions."""
    branches = branches or (2 if adapter.guidable else 1)
    return adapter.start(labels(adapter, batch), noise(batch, seed).permutation(adapter.num_tokens), branches)


def values(adapter: Adapter, batch: int, tokens: int, seed: int = 1) -> Draw:
    """Random values for the next rows."""
    if "codes" in type(adapter.config).__dataclass_fields__:
        return Draw((noise(batch, seed).uniform(tokens) * adapter.config.codes).long())
    return Draw(noise(batch, seed).normal(tokens, adapter.config.channels))


def run(
    adapter: Adapter,
    schedule: Schedule,
    batch: int = 2,
    *,
    seed: int = 0,
    selector: Selector | None = None,
    first: int = 0,
    known: Known | None = None,
) -> Canvas:
    """The canvas at the end of a run of images `first` and on."""
    asked = labels(adapter, first + batch)
    asked = None if asked is None else asked[first:]
    made = noise(batch, seed, first)
    *_, end = grouped_decode(adapter, asked, schedule, selector or adapter.selector(), made, known)
    assert end.decoded == adapter.num_tokens
    return end


def sample(adapter: Adapter, schedule: Schedule, batch: int = 2, **options: Any) -> Tensor:
    """The tokens (B, N, ...) of a run, in raster order."""
    end = run(adapter, schedule, batch, **options)
    assert end.finite.all()
    return end.raster()
