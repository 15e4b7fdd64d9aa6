"""Draw many images and look at each of them once: the figures and the time, and a state to go on from."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

import recap
from recap.checkpoints.pickles import read_pickle
from recap.core.noise import image_generators
from recap.core.schedule import Schedule
from recap.engine import WARM_RUNS
from recap.evaluation.inception import InceptionFeatures
from recap.evaluation.measure import LabelPlan, Measurement
from recap.files import written_whole
from recap.memory import Fitting
from recap.pipeline import Pipeline
from recap.timing import PHASES, Stopwatch, timed

SAVE_EVERY = 60.0  # seconds between two states on disk


@dataclass(frozen=True, slots=True)
class Run:
    """Which images are drawn: image i has its own seed and label, whatever the batch."""

    schedule: Schedule
    num: int
    batch: int
    seed: int
    plan: LabelPlan | None  # None for unconditional models

    def of(self, indices: range) -> dict[str, Any]:
        """What the pipeline is asked for these images."""
        if self.plan is None:
            return {"num_images": len(indices)}
        return {"labels": [self.plan(index) for index in indices]}

    def first(self, pipe: Pipeline) -> tuple[dict[str, Any], list[torch.Generator]]:
        """What the pipeline is asked for the first batch, and its randomness."""
        indices = range(min(self.batch, self.num))
        return self.of(indices), image_generators(self.seed, indices)


@dataclass(slots=True)
class Evaluation:
    """What a run gave: the measurement, and the seconds of each phase for all images."""

    seen: Measurement
    seconds: dict[str, float]
    done: int = 0


def evaluate(
    pipe: Pipeline,
    net: InceptionFeatures,
    run: Run,
    *,
    state: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    keep: int = 10_000,
    progress: bool = True,
) -> Evaluation:
    """Draw and look at all images of `run`; with `state`, a stopped run goes on from that file.

    `identity` says what the run is (model, setting, versions); a state of another run is refused.
    """
    if run.num < 1 or run.batch < 1:
        raise ValueError(f"{run.num} images in batches of {run.batch}; both must be at least 1")
    about = json.dumps(dict(identity or {}), sort_keys=True)
    result = Evaluation(Measurement(logits=net.has_logits, keep=keep), dict.fromkeys(PHASES, 0.0))
    if state is not None and state.is_file():
        result = read_state(state, about)
    pipe, watch = timed(pipe)
    pipe.progress = False
    saved, fitting = time.monotonic(), Fitting(run.batch, pipe.device)

    def drawn(indices: range) -> Tensor:
        with watch.measure("total"):
            images: Tensor = pipe(
                **run.of(indices),
                schedule=run.schedule,
                generator=image_generators(run.seed, indices),
                output_type="pt",
            ).images
        return images

    with tqdm(total=run.num, initial=result.done, desc=str(run.schedule), unit="image", disable=not progress) as bar:
        for indices, images in fitting.parts(range(result.done, run.num), drawn):
            result.seen.add(net, images, indices)
            for phase in PHASES:
                result.seconds[phase] += watch.seconds[phase]
                watch.seconds[phase] = 0.0
            result.done = indices.stop
            bar.update(len(indices))
            if state is not None and (time.monotonic() - saved > SAVE_EVERY or result.done == run.num):
                write_state(state, about, result)
                saved = time.monotonic()
    return result


def seconds_an_image(pipe: Pipeline, run: Run, batches: int = 2) -> dict[str, float]:
    """Time of drawing alone: the total over some batches after what does not count, then the split over phases.

    The split has a batch of its own, because clocks around every part make a device wait for each of them.
    """
    indices = range(run.batch)
    timed_pipe, parts = timed(pipe)
    whole = Stopwatch(pipe.device)

    def draw(with_pipe: Pipeline) -> None:
        generators = image_generators(run.seed, indices)
        with_pipe(**run.of(indices), schedule=run.schedule, generator=generators, output_type="pt")

    shown, pipe.progress, timed_pipe.progress = pipe.progress, False, False
    try:
        for _ in range(WARM_RUNS[pipe.engine]):
            draw(pipe)
        with whole.measure("total"):
            for _ in range(batches):
                draw(pipe)
        draw(timed_pipe)
    finally:
        pipe.progress = shown
    seconds = {phase: value / run.batch for phase, value in parts.seconds.items()}
    return seconds | {"total": whole.seconds["total"] / (batches * run.batch)}


def write_state(path: Path, about: str, result: Evaluation) -> None:
    """Everything that is needed to go on."""
    content = {"about": about, "done": result.done, "seconds": result.seconds, "seen": result.seen.state()}
    with written_whole(path) as file:
        torch.save(content, file)


def read_state(path: Path, about: str) -> Evaluation:
    """Go on from a state, if it is one of the same run."""
    try:
        content = read_pickle(path)
        theirs, done, seconds = content["about"], int(content["done"]), dict(content["seconds"])
        seen = Measurement.from_state(content["seen"])
    except Exception as error:  # whatever a damaged file makes of it
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); remove it to start anew"
        ) from error
    if theirs != about:
        raise ValueError(
            f"{path} belongs to another run: {theirs}, and this one is {about}; remove it or choose another --out"
        )
    return Evaluation(seen, {phase: float(seconds.get(phase, 0.0)) for phase in PHASES}, done)


def machine(device: torch.device | str) -> dict[str, Any]:
    """Where figures come from: device and versions."""
    device = torch.device(device)
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads",
        "recap": recap.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
