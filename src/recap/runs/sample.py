"""Make all images or texts of a run and keep them in a folder, with as many processes as there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from recap.core.canvas import Canvas
from recap.core.noise import image_seed
from recap.runs.draw import StepObserver, draw, images_together
from recap.runs.folder import RunFolder
from recap.runs.ranks import Ranks, Stopped, WorkQueue, handle_signals
from recap.runs.works import NOT_FINITE, Done, Failed, Work
from recap.view.progress import tqdm
from recap.view.say import say_above

if TYPE_CHECKING:
    from recap.pipelines.base import ModelPipeline as Pipeline

DrawBy = Callable[["Pipeline", Sequence[Work], StepObserver | None], Iterator[Done | Failed]]
PATIENCE = 10.0  # seconds for processes whose launcher was killed to notice it
MAX_FAILED = 8  # images with NaN or inf after which a model is not tried further


class RunSummary(NamedTuple):
    """How many images this run has made, and the seconds that all processes together drew them."""

    made: int
    seconds: float


class Progress:
    """Moves the bar of a run by sub-steps, and passes on what another observer wants to see."""

    def __init__(self, bar: Any, queue: WorkQueue, observer: StepObserver | None, num: int, noun: str) -> None:
        self.bar, self.queue, self.observer, self.num, self.noun = bar, queue, observer, num, noun
        self.taken = 0  # sub-steps since the last images were counted as done

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        self.taken += len(works)
        if self.queue.ranks.heartbeat():
            self.show()
        if self.observer is not None:
            self.observer.step(works, step, canvas)

    def done(self, results: Sequence[Done | Failed]) -> None:
        if self.observer is not None:
            self.observer.done(results)

    def show(self) -> None:
        """What all processes have done by now."""
        done = self.num - len(self.queue.todo) + self.queue.ranks.add("done", 0)
        self.bar.set_postfix_str(f"{done}/{self.num} {self.noun}s", refresh=False)
        self.bar.update(min(done * self.bar.total // self.num + self.taken, self.bar.total) - self.bar.n)


def sample_all(
    pipe: Pipeline,
    works: Sequence[Work],
    folder: RunFolder,
    ranks: Ranks,
    *,
    overwrite: bool = False,
    name: str = "",
    observer: StepObserver | None = None,
    draw_by: DrawBy = draw,
) -> RunSummary | None:
    """Make what the folder lacks. The first process returns a report once all is there, the others nothing.

    A run that ends early, however that comes about, goes on from its files when it is started again. An observer of
    this process takes the place of the progress bar.
    """
    noun, hidden = works[0].noun, not ranks.first or observer is not None
    try:
        with handle_signals():
            todo: list[int] = []
            if ranks.first:
                folder.threads = threads_of(pipe)
                anew = overwrite and not ranks.attempt  # a launcher that begins again means to go on
                todo = folder.prepare(overwrite=anew, patience=PATIENCE if ranks.launched else 0.0)
                ranks.put("threads", folder.threads)
            together = images_together(pipe, works[0].schedule)
            queue = WorkQueue(ranks, todo, pipe.batch_size, even=together == 1)
            folder.take(shared=True)
            follow(ranks.get("threads"), ranks)
            total = sum(len(work.schedule.steps) for work in works)
            with tqdm(total=total, desc=name, unit="step", disable=hidden) as bar:
                progress = Progress(bar, queue, observer, len(works), noun)
                seconds = make(pipe, works, folder, progress, draw_by)
                ranks.put(f"took/{ranks.rank}", seconds)
                ranks.add("left")
                if not ranks.first:
                    return None
                ranks.wait("left", ranks.world, progress.show)
                progress.show()
            failed = sorted(ranks.get(f"failed/{place}") for place in range(ranks.add("failed", 0)))
            if failed:
                seed = works[0].seed or 0
                named = ", ".join(f"{noun} {index} (own seed {image_seed(seed, index)})" for index in failed)
                kept = f"{folder.kept()} of {len(works)} {noun}s are in {folder.path}"
                raise FloatingPointError(f"{named} of seed {seed} {NOT_FINITE}; {kept}")
            made, took = len(queue.todo), sum(ranks.get(f"took/{rank}") for rank in range(ranks.world))
            folder.finish(works, {"seconds": took, "made": made, "processes": ranks.world} if made else {})
            return RunSummary(made, took)
    except Stopped as stop:
        if ranks.first:
            kept = f"{folder.kept()} of {len(works)} {noun}s are in {folder.path}"
            stop.args = (f"{stop}; {kept}; run the same command again to go on",)
        raise
    finally:
        folder.release()


def threads_of(pipe: Pipeline) -> int | None:
    """How many threads compute, where the last bits depend on it: on a CPU, but for what the engine makes exact."""
    if pipe.device.type != "cpu" or (pipe.engine == "onednn" and pipe.model.dtype == torch.float32):
        return None
    return torch.get_num_threads()


def follow(threads: int | None, ranks: Ranks) -> None:
    """Go on with the number of threads with which a run was begun."""
    if threads is not None and threads != (now := torch.get_num_threads()):
        if ranks.first:
            say_above(f"this run was begun with {threads} threads, and goes on with them instead of {now}")
        torch.set_num_threads(threads)


def make(pipe: Pipeline, works: Sequence[Work], folder: RunFolder, progress: Progress, draw_by: DrawBy) -> float:
    """Make images for as long as there are any to do, and keep each batch; the seconds that drawing took."""
    ranks, seconds = progress.queue.ranks, 0.0
    for numbers in progress.queue.chunks():
        progress.taken = 0
        if ranks.add("failed", 0) >= MAX_FAILED:
            continue
        began = time.perf_counter()
        results = list(draw_by(pipe, [works[number] for number in numbers], progress))
        seconds += time.perf_counter() - began
        folder.write([result for result in results if isinstance(result, Done)])
        for result in results:
            if isinstance(result, Failed):
                ranks.put(f"failed/{ranks.add('failed') - 1}", result.work.index)
    progress.taken = 0
    return seconds
