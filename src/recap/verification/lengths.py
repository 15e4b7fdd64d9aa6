"""Texts of unequal length in one batch: what fills the shorter ones up must be as if it were not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw, Known, take
from recap.core.decode import grouped_decode
from recap.core.noise import Noise, image_generators
from recap.core.protocols import Selector
from recap.core.schedule import Schedule
from recap.core.start import begin
from recap.models.adapter import Adapter
from recap.verification.compare import distance


class Scene(NamedTuple):
    """Texts of a batch as a run begins with them."""

    model: Adapter
    lengths: Tensor | None
    known: Known
    order: Tensor

    def begun(self) -> tuple[Canvas, ContextCache]:
        branches = 2 if self.model.guidable else 1
        canvas = begin(self.model, self.lengths, self.order, branches, self.known)
        layout = self.model.cache_layout()
        return canvas, ContextCache(layout, branches * canvas.batch, self.model.device, self.model.dtype)


class Texts:
    """Two texts of which the second is a quarter shorter, together and each alone.

    Their prompts are as long as is left of them when `written` tokens are to be written; without `prompted` one of
    them is as short as can be, and the other has one token more for every one that the texts differ by.
    """

    def __init__(self, model: Adapter, noise: Callable[..., Noise], seed: int, prompted: bool) -> None:
        self.model, self.seed = model, seed
        size, device = model.num_tokens, model.device
        short = size - max(1, size // 4)
        self.written = short // 2 if prompted else short - 1
        places = torch.arange(size, device=device).expand(2, -1)
        lengths = torch.tensor([size, short], device=device)
        masked = (places >= (lengths - self.written)[:, None]) & (places < lengths[:, None])
        ids = (noise(offset=4000).uniform(size) * model.config.codes).long()
        self.together = Scene(model, lengths, Known(ids, masked), noise(offset=5000).permutation(size))
        self.alone = [
            Scene(
                model.at(length),
                None,
                Known(ids[text : text + 1, :length], masked[text : text + 1, :length]),
                self.together.order[text : text + 1][self.together.order[text : text + 1] < length].view(1, -1),
            )
            for text, length in enumerate(lengths.tolist())
        ]

    def full(self) -> Iterator[float]:
        """A full evaluation, and the network's own forward, of the rows that belong to a text."""
        canvas, _ = self.together.begun()
        lengths = self.together.lengths
        assert lengths is not None
        model = self.together.model
        ours = model.prediction(model.full(canvas, None, slice(0, canvas.size)))
        plain = take(model.plain(canvas, lengths), canvas.order)
        for text, scene in enumerate(self.alone):
            rows = torch.arange(canvas.branches, device=lengths.device) * canvas.batch + text
            belong = canvas.order[text] < lengths[text]
            yield distance(ours[rows][:, belong], plain[rows][:, belong])
            own, _ = scene.begun()
            features = scene.model.prediction(scene.model.full(own, None, slice(0, own.size)))
            yield distance(ours[rows][:, belong], features)

    def local(self) -> Iterator[float]:
        """Local evaluations, when rows have changed their places and some were committed."""
        seen = [self._local(scene) for scene in (self.together, *self.alone)]
        together, *alone = seen
        for text, features in enumerate(alone):
            yield distance(together[text :: len(alone)], features)

    def _local(self, scene: Scene) -> Tensor:
        """Features (branches * B, n, D) of what is left of a group."""
        canvas, cache = scene.begun()
        known, group = canvas.decoded, self.written - self.written // 3
        texts = range(2) if scene.lengths is not None else [self.alone.index(scene)]
        noise = Noise(image_generators(self.seed + 6000, texts), scene.model.device)
        scene.model.full(canvas, cache, slice(known, canvas.size))
        canvas.promote(noise.permutation(self.written))
        part = max(1, group // 2)
        canvas.commit(Draw((noise.uniform(part) * scene.model.config.codes).long()))
        rows = slice(known, known + group)
        return scene.model.local(canvas, cache, rows, slice(canvas.decoded, rows.stop))

    def runs(self, schedule: Schedule, selector: Selector) -> Iterator[float]:
        """Whole runs, token for token."""
        together = self._run(self.together, schedule, selector, range(2))
        for text, scene in enumerate(self.alone):
            own = self._run(scene, schedule, selector, [text])
            yield distance(together[text : text + 1, : own.shape[1]], own)

    def _run(self, scene: Scene, schedule: Schedule, selector: Selector, texts: range | list[int]) -> Tensor:
        noise = Noise(image_generators(self.seed, texts), scene.model.device)
        *_, canvas = grouped_decode(scene.model, scene.lengths, schedule, selector, noise, scene.known)
        return canvas.raster()
