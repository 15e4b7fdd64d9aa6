"""Draw all images of a run into a folder, with as many processes as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from recap.core.schedule import Schedule
from recap.distributed.drawing import Asked, Audience, alone, draw, failure, fitting_for, png
from recap.distributed.folder import ImageFolder
from recap.distributed.ranks import Ranks, Work
from recap.distributed.stopping import Stopped, stoppable
from recap.pipeline import Pipeline
from recap.timing import PHASES, timed

PATIENCE = 10.0  # seconds for processes whose launcher was killed to notice it
MOST_FAILED = 8  # images without numbers after which a model is not tried further


@dataclass(frozen=True, slots=True)
class Report:
    """What this run has drawn, of how many, and what it took all processes together."""

    drawn: int
    seconds: dict[str, float]
    evaluations: dict[str, int]


@dataclass(frozen=True, slots=True)
class Job:
    """Which images to draw: their number, what each is asked to show, the seed they share, how many at a time."""

    schedule: Schedule
    num: int
    seed: int
    batch: int
    asked: Asked


def sample_all(
    pipe: Pipeline,
    job: Job,
    folder: ImageFolder,
    ranks: Ranks,
    *,
    about: Callable[[int], Mapping[str, Any]],
    overwrite: bool = False,
    name: str = "",
    audience: Audience | None = None,
) -> Report | None:
    """Draw what the folder lacks. The first process returns a report once all is there, the others nothing.

    A run that ends early, however that comes about, goes on from its files when it is started again. An audience of
    this process takes the place of the progress bar.
    """
    try:
        with stoppable():
            return _sample(pipe, job, folder, ranks, about, overwrite, name, audience)
    except Stopped as stop:
        kept = f"{folder.kept()} of {job.num} images are in {folder.path}; run the same command again to go on"
        raise Stopped(stop.number, f"{stop}; {kept}" if ranks.first else "") from stop
    finally:
        folder.lock.release()


def _sample(
    pipe: Pipeline,
    job: Job,
    folder: ImageFolder,
    ranks: Ranks,
    about: Callable[[int], Mapping[str, Any]],
    overwrite: bool,
    name: str,
    audience: Audience | None,
) -> Report | None:
    todo = None
    if ranks.first:
        patience = PATIENCE if ranks.launched else 0.0
        anew = overwrite and not ranks.attempt  # a launcher that begins again means to go on
        todo = folder.prepare(overwrite=anew, patience=patience, report=tqdm.write)
        folder.share()
    work = Work.share(ranks, todo, job.batch, even=alone(pipe))
    if not ranks.first:
        folder.share()
    pipe, watch = timed(pipe)
    pipe.progress = False
    before, fitting = job.num - len(work.todo), fitting_for(pipe, job.batch)
    hidden = not ranks.first or audience is not None
    with tqdm(total=job.num, initial=before, desc=name, unit="image", disable=hidden) as bar:

        def show() -> None:
            if ranks.beat() and ranks.first:
                bar.update(before + work.done - bar.n)

        for numbers in work.chunks():
            if ranks.count("failed") >= MOST_FAILED:
                continue
            drawn = draw(pipe, job.asked, job.schedule, job.seed, numbers, fitting, watch, show, audience)
            folder.write(dict(zip(drawn.numbers, map(png, drawn.pictures()), strict=True)))
            for number in drawn.failed:
                ranks.tell(f"failed/{ranks.add('failed') - 1}", number)
            bar.update(before + work.done + len(numbers) - bar.n)
        ranks.tell(f"took/{ranks.rank}", [watch.seconds, watch.calls])
        ranks.add("left")
        if not ranks.first:
            return None
        work.finish(show)
        bar.update(job.num - bar.n)
    ranks.wait("left", ranks.world)
    failed = sorted(ranks.hear(f"failed/{place}") for place in range(ranks.count("failed")))
    if failed:
        raise failure(failed, job.seed, f"{folder.kept()} of {job.num} images are in {folder.path}")
    folder.finish(about)
    seconds: Counter[str] = Counter(dict.fromkeys(PHASES, 0))
    calls: Counter[str] = Counter()
    for rank in range(ranks.world):
        theirs, counted = ranks.hear(f"took/{rank}")
        seconds.update(theirs)
        calls.update(counted)
    return Report(len(work.todo), dict(seconds), {phase: calls[phase] for phase in ("full", "local")})
