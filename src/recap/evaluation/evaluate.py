"""Draw many images and look at each of them once: the figures and the time, and a state to go on from."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import recap
from recap.checkpoints.pickles import read_pickle
from recap.core.noise import image_generators
from recap.core.schedule import Schedule
from recap.distributed.drawing import alone, draw, failure, fitting_for
from recap.distributed.ranks import Ranks, Work
from recap.engine import WARM_RUNS
from recap.evaluation.inception import InceptionFeatures
from recap.evaluation.measure import LabelPlan, Measurement
from recap.files import written_whole
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

    def of(self, indices: Sequence[int]) -> dict[str, Any]:
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

    @property
    def done(self) -> int:
        """How many images were looked at."""
        return self.seen.statistics.count or 0

    def merge(self, other: Evaluation) -> None:
        """Add what another process has seen."""
        self.seen.merge(other.seen)
        for phase, seconds in other.seconds.items():
            self.seconds[phase] += seconds


def evaluate(
    pipe: Pipeline,
    net: InceptionFeatures,
    run: Run,
    *,
    state: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    keep: int = 10_000,
    progress: bool = True,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Draw and look at all images of `run`; with `state`, a stopped run goes on from that file.

    `identity` says what the run is (model, setting, versions); a state of another run is refused. Of several `ranks`
    each looks at the images that it draws and keeps its sums beside `state`; the first returns those of all.
    """
    if run.num < 1 or run.batch < 1:
        raise ValueError(f"{run.num} images in batches of {run.batch}; both must be at least 1")
    ranks = ranks or Ranks()
    about = json.dumps(dict(identity or {}), sort_keys=True)
    result = Evaluation(Measurement(logits=net.has_logits, keep=keep), dict.fromkeys(PHASES, 0.0))
    todo = None
    if ranks.first:
        gather(state, about, result)
        todo = result.seen.reservoir.seen.missing(run.num)
    elif state is None:
        raise ValueError("several processes bring their sums together in files; give a state")
    work = Work.share(ranks, todo, run.batch, even=alone(pipe))
    own = state if state is None or ranks.first else state.with_suffix(f".{ranks.rank}{state.suffix}")
    pipe, watch = timed(pipe)
    pipe.progress = False
    saved, fitting = time.monotonic(), fitting_for(pipe, run.batch)
    before = run.num - len(work.todo)
    hidden = not progress or not ranks.first
    with tqdm(total=run.num, initial=before, desc=str(run.schedule), unit="image", disable=hidden) as bar:

        def show() -> None:
            if ranks.beat() and ranks.first:
                bar.update(before + work.done - bar.n)

        for numbers in work.chunks():
            drawn = draw(pipe, run.of, run.schedule, run.seed, numbers, fitting, watch, show)
            if drawn.numbers:
                result.seen.add(net, drawn.images, drawn.numbers)
            for phase in PHASES:
                result.seconds[phase] += watch.seconds[phase]
                watch.seconds[phase] = 0.0
            bar.update(before + work.done + len(numbers) - bar.n)
            if own is not None and (time.monotonic() - saved > SAVE_EVERY or drawn.failed):
                write_state(own, about, result)
                saved = time.monotonic()
            if drawn.failed:
                raise failure(drawn.failed, run.seed, "the sums of the others are kept")
        if own is not None and len(work.todo):
            write_state(own, about, result)
        ranks.add("left")
        if ranks.first:
            work.finish(show)
            bar.update(run.num - bar.n)
    if ranks.first:
        ranks.wait("left", ranks.world)
        gather(state, about, result)
    return result


def gather(state: Path | None, about: str, result: Evaluation) -> None:
    """Add to `result` what it has not seen of the states that all processes left, and keep the sum as one."""
    if state is None:
        return
    parts = sorted(state.parent.glob(f"{state.stem}.*{state.suffix}"))
    for path in [*([state] if state.is_file() else []), *parts]:
        part = read_state(path, about)
        common = len(result.seen.reservoir.seen & part.seen.reservoir.seen)
        if not common:
            result.merge(part)
        elif common != part.done:
            raise ValueError(f"{path} and other states beside it share {common} images; remove them to start anew")
    if parts:
        write_state(state, about, result)
        for path in parts:  # their images are in the state now, so a part that stays is passed over
            path.unlink()


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
        theirs, seconds = content["about"], dict(content["seconds"])
        seen = Measurement.from_state(content["seen"])
    except Exception as error:  # whatever a damaged file makes of it
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}); remove it to start anew"
        ) from error
    if theirs != about:
        raise ValueError(
            f"{path} belongs to another run: {theirs}, and this one is {about}; remove it or choose another --out"
        )
    return Evaluation(seen, {phase: float(seconds.get(phase, 0.0)) for phase in PHASES})


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
