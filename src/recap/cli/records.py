"""What a run is asked for, what its images hang on, and what is written down about it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from recap.cli.sheets import Drawn
from recap.core.noise import image_seed
from recap.core.schedule import Schedule
from recap.distributed.fingerprint import fingerprint, short_digest
from recap.pipeline import Pipeline
from recap.versions import versions


@dataclass(frozen=True, slots=True)
class Request:
    """Which images to draw: their labels if there are any, the seed they share, and how many at a time."""

    num: int
    labels: list[int] | None
    seed: int
    batch: int

    def batches(self) -> list[range]:
        """The indices of the images of each batch."""
        return [range(first, min(first + self.batch, self.num)) for first in range(0, self.num, self.batch)]

    def of(self, indices: Sequence[int]) -> dict[str, Any]:
        """What the pipeline is asked for these images."""
        if self.labels is None:
            return {"num_images": len(indices)}
        return {"labels": [self.labels[index] for index in indices]}


def identity(args: argparse.Namespace, pipe: Pipeline, schedule: Schedule, request: Request) -> dict[str, Any]:
    """All that the images hang on: what a run must share with an earlier one to go on with it."""
    steps = schedule.steps
    return {
        "weights": fingerprint(pipe.model.module, pipe.tokenizer),
        "evaluations": str(schedule),
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].token_temperature, steps[-1].token_temperature],
        "schedule": short_digest(schedule),
        "order": f"{type(pipe.selector).__name__} {short_digest(getattr(pipe.selector, 'positions', None))}",
        "num": request.num,
        "seed": request.seed,
        "labels": None if request.labels is None else short_digest(request.labels),
        "dtype": args.dtype,
        "device": pipe.device.type,
        "engine": args.engine,
        "format": args.format,
    }


def record(
    args: argparse.Namespace, pipe: Pipeline, shown: str, schedule: Schedule, request: Request, result: Drawn
) -> dict[str, Any]:
    """Everything needed to draw the same again, and what it took."""
    labels, steps = request.labels, schedule.steps
    return {
        "model": shown,
        "labels": labels,
        "class_names": None if labels is None or not pipe.class_names else [pipe.class_names[i] for i in labels],
        "seed": request.seed,
        "seeds": [image_seed(request.seed, index) for index in range(request.num)],
        "batch": request.batch,
        "sampling": pipe.sampling.as_dict(),
        "full": schedule.full,
        "local": schedule.local,
        "plain": schedule.plain,
        "order": args.order,
        "tokens": list(schedule.sizes),
        "guidance": [steps[0].guidance, steps[-1].guidance],
        "temperature": [steps[0].token_temperature, steps[-1].token_temperature],
        "choice_temperature": [steps[0].choice_temperature, steps[-1].choice_temperature],
        "head_steps": sorted({step.head_steps for step in steps}, reverse=True),
        "dtype": args.dtype,
        "device": args.device,
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "versions": versions(),
    }
