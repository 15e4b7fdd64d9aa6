"""What pipelines of images and of text have in common: a model, the engine that runs it, and options."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor, nn

from recap import weights
from recap.checkpoints import CheckpointError
from recap.core.noise import Noise
from recap.core.options import SamplingOptions
from recap.core.protocols import Releasable, Selector
from recap.core.schedule import Schedule
from recap.engine import default_engine, noise_with, with_engine
from recap.models.adapter import Adapter, ModelWrapper
from recap.models.registry import Config, adapt, build, family_of, usual_preset
from recap.pipelines.loading import Parts, blank_net, find_model, find_parts, read_parts
from recap.runs.works import Done, Work

BATCH = 8  # drawn together where nothing else is said
Asked = str | SamplingOptions | Schedule  # how a run is to be sampled


class ModelPipeline:
    """A model with an engine around it.

    `batch_size` images or texts are drawn together, on the CPU one unless the bits are the same; where there are
    fewer a GPU's batch is filled up, so that none depends on the others.
    """

    modality: ClassVar[str]
    progress = True
    tokenizer: Any
    class_names: Sequence[str] | None = None

    def __init__(self, model: nn.Module | Adapter, selector: Selector | None, batch_size: int) -> None:
        self.model: Adapter = adapt(model)
        self._plain_model = self.model
        self.compile("auto")
        self.selector: Selector = selector or self.model.selector()
        self.options = SamplingOptions(usual_preset(self.model))
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; draw at least one at a time")
        self.batch_size = batch_size

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        tokenizer: Any = None,
        torch_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        revision: str | None = None,
        local_files_only: bool = False,
    ) -> Self:
        """Read a model folder, a model that comes with the package by its name, or "owner/name" from the hub.

        Its tokenizer is `tokenizer`, or what its `config.json` names, or lies in the sub-folder `tokenizer`. The hub
        needs the extra `hub`; with `local_files_only`, or HF_HUB_OFFLINE=1 in the environment, only what was
        downloaded before is looked at. `revision` is a branch, tag or commit there.
        """
        found = find_model(folder, revision=revision, local_files_only=local_files_only)
        if found is None:
            inside = f", or use one that does: {', '.join(weights.embedded())}" if weights.embedded() else ""
            raise CheckpointError(
                f"{folder} is a published size whose weights do not come with the package; write its official file "
                f"into a folder with `recap convert FILE {folder}`{inside}"
            )
        parts = read_parts(found, tokenizer)
        if (kind := family_of(parts.net).modality) != cls.modality:
            raise CheckpointError(f"{folder} holds a model of {kind}; read it with recap.load")
        return cls.from_parts(parts, found).to(device, torch_dtype)

    @classmethod
    def from_parts(cls, parts: Parts, name: object) -> Self:
        """The pipeline of parts that belong together; `name` is for the error if they do not."""
        raise NotImplementedError

    @classmethod
    def blank(cls, model: str | Path, *, shrink: bool = False) -> Self:
        """A pipeline without weights, of a folder or a published size."""
        parts = find_parts(model, partial(build, meta=True), blank_net, shrink=shrink)
        return cls.from_parts(parts, model)

    def to(self, device: torch.device | str | torch.dtype | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the model to a device, and to a dtype."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device
        self.model.module.to(device=device, dtype=dtype)
        return self.compile(self._asked_engine)  # which holds on to the addresses of weights

    def compile(self, engine: str = "graphs") -> Self:
        """Run the model with another engine from now on.

        "eager" is plain torch, "onednn" has packed weights, "fused" Triton kernels, which "graphs" replays; "auto" is
        "onednn" on a CPU and "eager" elsewhere. After a change of weights, call it again.
        """
        self._asked_engine = engine
        if engine == "auto":  # what somebody has wrapped around a model stays as it is
            wrapped = isinstance(self._plain_model, ModelWrapper)
            engine = "eager" if wrapped else default_engine(self._plain_model.device)
        self.engine = engine
        self.model, self._noise = with_engine(self._plain_model, self.engine), noise_with(self.engine)
        return self

    def release(self) -> None:
        """Let go of the memory that the engine keeps for later runs; the next one sets itself up anew."""
        self.model.release()
        if isinstance(self._noise, Releasable):
            self._noise.release()

    def noise(self, streams: Sequence[Generator | int]) -> Noise:
        """The randomness of a batch, as the engine makes it."""
        return self._noise(streams, self.device)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def with_model(self, model: Adapter) -> Self:
        """The same pipeline around another model, such as one that is watched; this one stays as it is."""
        other = copy.copy(self)
        other.model = model
        return other

    def model_of(self, work: Work) -> Adapter:
        """The model that draws a work."""
        return self.model

    def schedule(self, asked: Asked | None = None) -> Schedule:
        """The schedule of a run: the model's own, or as asked."""
        raise NotImplementedError

    @property
    def decoder(self) -> Any:
        """The network that makes pixels of tokens, where there is one."""
        return self.tokenizer

    def trial(
        self, num: int, schedule: Asked | None = None, *, seed: int = 0, labels: Sequence[int] | None = None
    ) -> list[Work]:
        """Works to measure with: `num` images of these classes, or texts without a prompt that nothing ends."""
        raise NotImplementedError

    def sized(self, tokens: int) -> Config:
        """The sizes of the model where it draws so many tokens."""
        config: Config = self.model.config
        return config

    def answer(self, result: Done) -> Any:
        """What a caller is given of a finished work: a picture, or a text."""
        raise NotImplementedError

    def encode(self, images: Any) -> Tensor:
        """Tokens of what a run begins with, where it has none yet."""
        raise NotImplementedError

    def decode(self, tokens: Tensor, output_type: str = "pil") -> Any:
        """What is shown of tokens in raster order: pictures; of text, nothing but the tokens."""
        raise NotImplementedError

    def preview(self, tokens: Tensor, masked: Tensor) -> Any:
        """What is shown of a run under way."""
        raise NotImplementedError
