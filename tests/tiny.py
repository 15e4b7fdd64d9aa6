"""Small models of all three families, with random weights under which no part is idle."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, image_generators
from recap.core.protocols import Selector
from recap.models.adapter import Adapter
from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.models.zoo import adapt, build, family_of, randomize

CONFIGS: dict[str, Any] = {
    "mar": MARConfig(32, 2, 3, heads=4, head_depth=2, head_width=48, num_tokens=16, channels=4, buffer=3, classes=5),
    "mage": MAGEConfig(32, 3, 2, 4, 2, num_tokens=16, codes=20, class_slots=4, fake_class=22, patch=0, vqgan=None),
    "maskgit": MaskGITConfig(32, 4, 4, num_tokens=16, codes=20, classes=5),
}
FAMILIES = tuple(CONFIGS)


def model(family: str, seed: int = 0, **changes: Any) -> Adapter:
    return adapt(randomize(build(replace(CONFIGS[family], **changes)), seed))


def selector(family: str) -> Selector:
    return family_of(CONFIGS[family]).selector()


def labels(adapter: Adapter, batch: int) -> Tensor | None:
    return torch.arange(batch) % adapter.classes if adapter.classes else None


def noise(batch: int, seed: int = 0, first: int = 0) -> Noise:
    return Noise(image_generators(seed, range(first, first + batch)), "cpu")


def canvas(adapter: Adapter, batch: int = 2, branches: int | None = None, seed: int = 0) -> Canvas:
    """An empty canvas whose rows arrive at random positions."""
    branches = branches or (2 if adapter.guidable else 1)
    return adapter.start(labels(adapter, batch), noise(batch, seed).permutation(adapter.num_tokens), branches)


def values(adapter: Adapter, batch: int, tokens: int, seed: int = 1) -> Draw:
    """Random values for the next rows."""
    if "codes" in type(adapter.config).__dataclass_fields__:
        return Draw((noise(batch, seed).uniform(tokens) * adapter.config.codes).long())
    return Draw(noise(batch, seed).normal(tokens, adapter.config.channels))
