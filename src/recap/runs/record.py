"""What the images of a run depend on, and what is written down about it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
import torch
from torch import nn

from recap.core.noise import image_seed
from recap.runs.works import Work

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline as Pipeline


def identity(pipe: Pipeline, works: Sequence[Work]) -> dict[str, Any]:
    """All that the images depend on: what a run must share with an earlier one to go on with it."""
    first = works[0]
    steps = first.schedule.steps
    positions = None if first.order else getattr(pipe.selector, "positions", None)
    return {
        "weights": fingerprint(pipe.model.module, pipe.tokenizer if isinstance(pipe.tokenizer, nn.Module) else None),
        **({} if pipe.modality == "images" else text_identity(pipe, works)),
        "evaluations": str(first.schedule),
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].temperature, steps[-1].temperature],
        "schedule": digest(first.schedule.canonical_text()),
        "order": first.order or type(pipe.selector).__name__,
        **({} if positions is None else {"positions": digest(positions)}),
        "num": len(works),
        "seed": first.seed,
        **({} if first.start is None else {"start": digest(list(map(start_digests, works)))}),
        "labels": None if first.label is None else digest([work.label for work in works]),
        "dtype": str(pipe.model.dtype).removeprefix("torch."),
        "device": pipe.device.type,
        "engine": pipe.engine,
    }


def text_identity(pipe: Pipeline, works: Sequence[Work]) -> dict[str, Any]:
    """What texts depend on beside: how ids are spelled, where a text ends, and schedules that prompts made differ."""
    spelled = [pipe.tokenizer.decode([code], skip_special_tokens=False) for code in range(len(pipe.tokenizer))]
    texts = [work.schedule.canonical_text() for work in works]
    return {
        "tokenizer": digest(spelled),
        "block": works[0].block,
        "stop": works[0].stop,
        "schedules": digest(list(dict.fromkeys(texts))),
    }


def start_digests(work: Work) -> list[str]:
    """What an image begins with, in a few characters."""
    start = work.start
    assert start is not None
    parts = (start.masked, start.pixels, start.white, start.tokens if start.pixels is None else None)
    return [digest(part.cpu().numpy().tobytes()) for part in parts if part is not None]


def digest(content: object) -> str:
    """A short text that differs for contents that have different reprs."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def fingerprint(*modules: nn.Module | None) -> str:
    """Equal for equal weights, on every device."""
    total = hashlib.sha256()
    for place, module in enumerate(modules):
        for name, tensor in sorted((module.state_dict() if module is not None else {}).items()):
            total.update(f"{place} {name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
            total.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return total.hexdigest()[:16]


def record(
    pipe: Pipeline, model: str, works: Sequence[Work], seconds: float | None, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything needed to make the same images again, and how long it took (None: nobody knows any more);
    `known` is the run's identity."""
    schedule = works[0].schedule
    first, last = schedule.steps[0], schedule.steps[-1]
    labels = [work.label for work in works if work.label is not None and pipe.modality == "images"]
    names = pipe.class_names
    return {
        "model": model,
        **known,
        "labels": labels or None,
        "class_names": [names[label] for label in labels] if labels and names else None,
        "seeds": [image_seed(work.seed, work.index) for work in works if work.seed is not None] or None,
        "batch": pipe.batch_size,
        "full": schedule.full,
        "local": schedule.local,
        "warmup": schedule.warmup,
        "tokens": list(schedule.sizes),
        "choice_temperature": [first.choice_temperature, last.choice_temperature],
        "head_steps": [first.head_steps, last.head_steps],
        "device": str(pipe.device),
        "seconds": seconds,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of everything that images may depend on."""
    import recap

    return {
        "recap": recap.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
    }
