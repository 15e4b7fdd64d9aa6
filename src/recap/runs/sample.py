"""Make all images of a run and keep them in a folder, with as many processes as there are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from recap.core.canvas import Canvas
from recap.core.noise import image_seed
from recap.runs.draw import StepObserver, backoff_for, draw, one_at_a_time
from recap.runs.folder import RunFolder
from recap.runs.ranks import Ranks, WorkQueue
from recap.runs.stopping import Stopped, handle_signals
from recap.runs.works import Done, Failed, Work

if TYPE_CHECKING:
    from recap.pipelines import Pipeline

PATIENCE = 10.0  # seconds for processes whose launcher was killed to notice it
MAX_FAILED = 8  # images with NaN or inf after which a model is not tried further


@dataclass(slots=True)
class Report:
    """How many images this run has made, and how long that took all processes together."""

    made: int = 0
    seconds: float = 0.0


class Progress:
    """Moves the bar of a run by sub-steps, and passes on what another observer wants to see."""

    def __init__(self, bar: Any, queue: WorkQueue, before: int, steps: int, observer: StepObserver | None) -> None:
        self.bar, self.queue, self.before, self.steps, self.observer = bar, queue, before, steps, observer
        self.taken = 0  # sub-steps since the last images were counted as done

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        self.taken += len(works)
        self.show()
        if self.observer is not None:
            self.observer.step(works, step, canvas)

    def done(self, results: Sequence[Done | Failed]) -> None:
        if self.observer is not None:
            self.observer.done(results)

    def show(self) -> None:
        """Look at what all processes have done, if it is time; fails if the launcher is gone."""
        if self.queue.ranks.heartbeat() and self.queue.ranks.first:
            done = self.before + self.queue.done
            self.bar.set_postfix_str(f"{done}/{done + len(self.queue.todo) - self.queue.done} images", refresh=False)
            self.bar.update(min(done * self.steps + self.taken, self.bar.total) - self.bar.n)


def sample_all(
    pipe: Pipeline,
    works: Sequence[Work],
    folder: RunFolder,
    ranks: Ranks,
    *,
    overwrite: bool = False,
    name: str = "",
    observer: StepObserver | None = None,
    progress: bool = True,
) -> Report | None:
    """Make what the folder lacks. The first process returns a report once all is there, the others nothing.

    A run that ends early, however that comes about, goes on from its files when it is started again. An observer of
    this process takes the place of the progress bar.
    """
    try:
        with handle_signals():
            queue = queue_for(pipe, folder, ranks, overwrite)
            report = Report(len(queue.todo))
            steps, hidden = len(works[0].schedule.steps), not (ranks.first and progress) or observer is not None
            with tqdm(total=len(works) * steps, desc=name, unit="step", disable=hidden) as bar:
                watch = Progress(bar, queue, len(works) - len(queue.todo), steps, observer)
                make(pipe, works, folder, watch, report)
            if not ranks.first:
                return None
            gather(works, folder, ranks, report)
            folder.finish(lambda index: about(works[index]))
            return report
    except Stopped as stop:
        kept = f"{folder.kept()} of {len(works)} images are in {folder.path}; run the same command again to go on"
        raise Stopped(stop.number, f"{stop}; {kept}" if ranks.first else "") from stop
    finally:
        folder.lock.release()


def queue_for(pipe: Pipeline, folder: RunFolder, ranks: Ranks, overwrite: bool) -> WorkQueue:
    """The images that the folder lacks, for all processes, which now hold the folder together."""
    todo = None
    if ranks.first:
        anew = overwrite and not ranks.attempt  # a launcher that begins again means to go on
        todo = folder.prepare(overwrite=anew, patience=PATIENCE if ranks.launched else 0.0, report=tqdm.write)
        folder.lock.take(shared=True)
    queue = WorkQueue(ranks, todo, pipe.batch_size, even=one_at_a_time(pipe.device))
    if not ranks.first:
        folder.lock.take(shared=True)
    return queue


def make(pipe: Pipeline, works: Sequence[Work], folder: RunFolder, progress: Progress, report: Report) -> None:
    """Make images for as long as there are any to do, and keep each batch."""
    queue, backoff = progress.queue, backoff_for(pipe)
    ranks = queue.ranks
    for numbers in queue.chunks():
        progress.taken = 0
        if ranks.add("failed", 0) >= MAX_FAILED:
            continue
        began, results = time.perf_counter(), list[Done | Failed]()
        results += draw(pipe, [works[number] for number in numbers], progress, backoff=backoff)
        report.seconds += time.perf_counter() - began
        folder.write([result for result in results if isinstance(result, Done)])
        for result in results:
            if isinstance(result, Failed):
                ranks.put(f"failed/{ranks.add('failed') - 1}", result.work.index)
    progress.taken = 0
    ranks.put(f"took/{ranks.rank}", report.seconds)
    ranks.add("left")
    if ranks.first:
        queue.finish(progress.show)
        progress.show()


def gather(works: Sequence[Work], folder: RunFolder, ranks: Ranks, report: Report) -> None:
    """Wait for all processes and bring together what they took; fails if an image of any of them did."""
    ranks.wait("left", ranks.world)
    failed = sorted(ranks.get(f"failed/{place}") for place in range(ranks.add("failed", 0)))
    if failed:
        raise failure(failed, works[0].seed or 0, f"{folder.kept()} of {len(works)} images are in {folder.path}")
    report.seconds = sum(ranks.get(f"took/{rank}") for rank in range(ranks.world))


def about(work: Work) -> dict[str, Any]:
    """What the manifest says of an image."""
    own = {} if work.label is None else {"label": work.label}
    return {"seed": image_seed(work.seed or 0, work.index), **own}


def failure(failed: Sequence[int], seed: int, where: str) -> FloatingPointError:
    """What to say of images that came to nothing."""
    named = ", ".join(f"image {i} (own seed {image_seed(seed, i)})" for i in failed)
    return FloatingPointError(
        f"{named} of seed {seed} ran into NaN or inf; {where}. Use bfloat16 or float32 instead of float16, or a "
        f"lower guidance scale"
    )
