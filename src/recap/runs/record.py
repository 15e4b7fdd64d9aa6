"""What the images of a run depend on, and what is written down about it."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
import torch

from recap.core.noise import image_seed
from recap.runs.fingerprint import digest, fingerprint
from recap.runs.works import Work

if TYPE_CHECKING:
    from recap.pipelines import Pipeline


def identity(pipe: Pipeline, works: Sequence[Work]) -> dict[str, Any]:
    """All that the images depend on: what a run must share with an earlier one to go on with it."""
    first, labels = works[0], [work.label for work in works]
    steps = first.schedule.steps
    positions = None if first.order else getattr(pipe.selector, "positions", None)
    return {
        "weights": fingerprint(pipe.model.module, pipe.tokenizer),
        "evaluations": str(first.schedule),
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].temperature, steps[-1].temperature],
        "schedule": digest(first.schedule),
        "order": first.order or type(pipe.selector).__name__,
        **({} if positions is None else {"positions": digest(positions)}),
        "num": len(works),
        "seed": first.seed,
        **({} if first.start is None else {"start": digest([start_digest(work) for work in works])}),
        "labels": None if first.label is None else digest(labels),
        "dtype": str(pipe.model.dtype).removeprefix("torch."),
        "device": pipe.device.type,
        "engine": pipe.engine,
    }


def start_digest(work: Work) -> list[str]:
    """What an image begins with, in a few characters."""
    start = work.start
    assert start is not None
    parts = (start.masked, start.pixels, start.white, start.tokens if start.pixels is None else None)
    return [digest(part.cpu().numpy().tobytes()) for part in parts if part is not None]


def record(
    pipe: Pipeline, model: str, works: Sequence[Work], seconds: float, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything needed to make the same images again, and how long it took; `known` is the run's identity."""
    schedule, labels, seeds = works[0].schedule, list[int](), list[int]()
    for work in works:
        labels += [] if work.label is None else [work.label]
        seeds += [] if work.seed is None else [image_seed(work.seed, work.index)]
    steps = schedule.steps
    return {
        "model": model,
        **known,
        "labels": labels or None,
        "class_names": list(map(pipe.name_of, labels)) if labels and pipe.class_names else None,
        "seeds": seeds or None,
        "batch": pipe.batch_size,
        "full": schedule.full,
        "local": schedule.local,
        "warmup": schedule.warmup,
        "tokens": list(schedule.sizes),
        "choice_temperature": [steps[0].choice_temperature, steps[-1].choice_temperature],
        "head_steps": [steps[0].head_steps, steps[-1].head_steps],
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
