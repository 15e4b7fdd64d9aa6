"""The queue: who is drawn with whom, who is turned away, who is forgotten, and what closing returns."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

from prometheus_client import generate_latest

from recap import Pipeline, SamplingOptions, Schedule, cosine
from recap.runs.works import Done, Work
from recap.server.guard import ApiError
from recap.server.requests import CheckedRequest, PendingRequest, read
from recap.server.schema import DrawRequest
from recap.server.worker import Worker
from tests.server.served import PATIENCE, Gate, Visit, few, metric, opened, served, small, soon

SCHEDULES = [cosine(16, full=4), cosine(16, full=4, local=2), cosine(16, full=4, guidance=2.0)]
FAULTS = {13: RuntimeError("a secret of the machine"), 14: torch.OutOfMemoryError("CUDA of the machine")}
BRIEF: Any = {"full": 3, "local": 2}


@cache
def pipe() -> Pipeline:
    return few("maskgit")


class Model:
    """Draws the index and seed of an image as its size, when it is let."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[list[Work]] = []
        self.go, self.began = threading.Event(), threading.Event()
        self.abandoned = 0
        if not held:
            self.go.set()

    def draw(
        self, pipe: Any, works: Sequence[Work], *, cancelled: Callable[[Work], bool], **_: Any
    ) -> Iterator[Done]:
        self.batches.append(list(works))
        self.began.set()
        while not self.go.wait(0.005):
            if all(map(cancelled, works)):
                self.abandoned += 1
                return
        for work in works:
            assert work.seed is not None
            if work.seed in FAULTS:
                raise FAULTS[work.seed]
            yield Done(work, torch.empty(0), torch.zeros(3, work.seed + 1, work.index + 1))


class Queue:
    """A worker with a model of one's own."""

    def __init__(self, model: Model, **limits: Any) -> None:
        self.worker = Worker({"tiny": pipe()}, small(**limits), draw=model.draw)

    def submit(self, kind: int, num: int, seed: int = 0) -> PendingRequest:
        works = [Work(SCHEDULES[kind], index, 0, seed) for index in range(num)]
        request = PendingRequest(CheckedRequest(DrawRequest(num=num), "tiny", pipe(), works, SamplingOptions()))
        self.worker.submit(request)
        return request

    def count(self, name: str) -> float:
        return metric(generate_latest(self.worker.metrics.registry).decode(), name)


def run(model: Model, use: Callable[[Queue], Awaitable[Any]], **limits: int) -> Any:
    async def inside() -> Any:
        queue = Queue(model, **limits)
        queue.worker.start()
        try:
            return await asyncio.wait_for(use(queue), PATIENCE)
        finally:
            await queue.worker.stop()

    return asyncio.run(inside())


async def begun(model: Model) -> None:
    assert await asyncio.to_thread(model.began.wait, PATIENCE)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8), st.integers(0, 9)), max_size=12))
def test_everybody_gets_their_own_images_and_batches_share_a_schedule(asked: list[tuple[int, int, int]]) -> None:
    model = Model()

    async def use(queue: Queue) -> None:
        requests = [(queue.submit(*each), each) for each in asked]
        for request, (_kind, num, seed) in requests:
            assert [image.size for image in await request.done] == [(i + 1, seed + 1) for i in range(num)]

    run(model, use, queue=200)
    schedules: list[set[Schedule]] = [{work.schedule for work in batch} for batch in model.batches]
    assert all(len(each) == 1 for each in schedules)
    assert all(len(batch) <= 4 for batch in model.batches)
    assert sum(map(len, model.batches)) == sum(num for _, num, _ in asked)
    # no two batches in a row could have been one
    for (one, kind), (two, other) in pairwise(zip(model.batches, schedules, strict=True)):
        assert kind != other or len(one) == 4 or len(two) == 4 or len(one) + len(two) > 4


def test_first_come_first_served() -> None:
    model = Model(held=True)

    async def use(queue: Queue) -> None:
        first = queue.submit(0, 1)
        await begun(model)
        later = [queue.submit(kind, 2, seed) for seed, kind in enumerate((1, 0, 1, 0))]
        model.go.set()
        await asyncio.gather(first.done, *(request.done for request in later))

    run(model, use)
    assert [[work.seed for work in batch] for batch in model.batches] == [[0], [0, 0, 2, 2], [1, 1, 3, 3]]


def test_a_full_queue_says_when_to_come_again() -> None:
    model = Model(held=True)

    async def use(queue: Queue) -> None:
        running = queue.submit(0, 4)
        await begun(model)
        waiting = queue.submit(0, 6)
        with pytest.raises(ApiError, match="6 of 8 places are taken and 3 were asked for") as no:
            queue.submit(0, 3)
        assert no.value.status_code == 429
        assert int((no.value.headers or {})["Retry-After"]) >= 1
        assert queue.count("recap_queue_images") == 6
        assert queue.count("recap_running_images") == 4
        more = queue.submit(1, 2)
        model.go.set()
        await asyncio.gather(running.done, waiting.done, more.done)

    run(model, use)


def test_who_leaves_is_forgotten() -> None:
    model = Model(held=True)

    async def use(queue: Queue) -> None:
        lonely = queue.submit(0, 2, 1)
        await begun(model)
        waiting, other = queue.submit(0, 3, 2), queue.submit(0, 1, 3)
        queue.worker.drop(waiting)
        assert queue.count("recap_queue_images") == 1
        model.began.clear()
        queue.worker.drop(lonely)  # nobody else is in its batch
        await begun(model)
        assert model.abandoned == 1
        joined = queue.submit(0, 1, 4)
        model.go.set()
        await asyncio.gather(other.done, joined.done)
        assert queue.count("recap_images_dropped_total") == 2

    run(model, use)
    assert [[work.seed for work in batch] for batch in model.batches] == [[1, 1], [3], [4]]


def test_a_batch_goes_on_for_the_others_in_it() -> None:
    model = Model(held=True)

    async def use(queue: Queue) -> None:
        first = queue.submit(1, 1)
        await begun(model)
        model.began.clear()
        leaving, staying = queue.submit(0, 1, 1), queue.submit(0, 1, 2)
        queue.worker.drop(first)
        await begun(model)  # the batch of both
        queue.worker.drop(leaving)
        model.go.set()
        assert (await staying.done)[0].size == (1, 3)

    run(model, use)
    assert model.abandoned == 1
    assert [[work.seed for work in batch] for batch in model.batches] == [[0], [1, 2]]


@pytest.mark.parametrize(("seed", "code"), [(13, "failed"), (14, "memory")])
def test_a_fault_ends_one_batch_and_says_nothing_of_the_machine(
    caplog: pytest.LogCaptureFixture, seed: int, code: str
) -> None:
    async def use(queue: Queue) -> None:
        before, broken, whole = (queue.submit(*each) for each in ((0, 1, 2), (0, 1, seed), (1, 1, 2)))
        assert len(await before.done) == 1  # finished before the fault came
        with pytest.raises(ApiError) as no:
            await broken.done
        assert (no.value.status_code, no.value.code, "machine" in no.value.detail) == (500, code, False)
        assert len(await whole.done) == 1

    with caplog.at_level(logging.CRITICAL, "recap.server"):
        run(Model(), use)


def test_closing_finishes_what_was_accepted() -> None:
    async def use(queue: Queue) -> None:
        requests = [queue.submit(kind, 2, kind) for kind in range(3)]
        await queue.worker.close(20)
        assert [len(request.done.result()) for request in requests] == [2, 2, 2]
        with pytest.raises(ApiError) as no:
            queue.submit(0, 1)
        assert no.value.status_code == 503

    run(Model(), use)


def test_closing_returns_what_cannot_be_finished() -> None:
    model = Model(held=True)

    async def use(queue: Queue) -> None:
        requests = [queue.submit(kind, 2) for kind in range(2)]
        await begun(model)
        await queue.worker.close(0.05)
        for request in requests:
            with pytest.raises(ApiError) as no:
                await request.done
            assert no.value.status_code == 503

    run(model, use)
    assert (len(model.batches), model.abandoned) == (1, 1)


def idle(worker: Worker) -> bool:
    text = generate_latest(worker.metrics.registry).decode()
    return metric(text, "recap_queue_images") == metric(text, "recap_running_images") == 0


def visited(worker: Worker, visit: Callable[[Any], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with opened(worker) as app:
            await asyncio.wait_for(visit(app), 2 * PATIENCE)

    asyncio.run(inside())


def gated(**limits: Any) -> tuple[Gate, Worker]:
    gate = Gate()
    return gate, served("maskgit", draws={"compare": gate.compare}, **limits)


def test_comparisons_and_images_wait_in_one_queue() -> None:
    """Each visitor is told its place at once and whenever it changes; beyond the last one there is none."""
    gate, worker = gated(queue=4, max_images=4)

    async def visit(app: Any) -> None:
        first = Visit(app, **BRIEF)
        assert (await first.event() or {})["event"] == "started"
        second = Visit(app, **BRIEF, seed=1)
        assert await second.event() == {"event": "queued", "position": 1}
        images = PendingRequest(read(worker.models, worker.limits, DrawRequest(labels=[1, 2])))
        worker.submit(images)
        third = Visit(app, **BRIEF, seed=3)
        assert await third.event() == {"event": "queued", "position": 3}
        status, headers = await Visit(app, **BRIEF).start()
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        await second.leave()
        assert await third.event() == {"event": "queued", "position": 2}
        gate.open()
        assert (await first.rest())[-1]["event"] == "done"
        assert len(await images.done) == 2
        events = await third.rest()
        assert events[-1]["event"] == "done"
        assert [event["position"] for event in events if event["event"] == "queued"] == [1]
        assert next(event for event in events if event["event"] == "started")["seed"] == 3

    visited(worker, visit)


@pytest.mark.parametrize("seen", [None, 0, 1, 4])
def test_leaving_stops_a_comparison_before_its_next_sub_step(seen: int | None) -> None:
    """Also between the request and the first event."""
    gate, worker = gated()

    async def visit(app: Any) -> None:
        leaving = Visit(app, **BRIEF)
        gate.open(seen or 0)
        for _ in range(0 if seen is None else 1 + seen):
            assert await leaving.event() is not None
        await leaving.leave()
        gate.open()
        await soon(lambda: idle(worker))
        assert gate.drawn <= (seen or 0) + 1  # the sub-step that was under way
        after = await Visit(app, **BRIEF).rest()
        assert after[-1]["event"] == "done"

    visited(worker, visit)


def test_closing_ends_comparisons_too() -> None:
    gate, worker = gated()

    async def visit(app: Any) -> None:
        running = Visit(app, **BRIEF)
        assert (await running.event() or {})["event"] == "started"
        waiting = Visit(app, **BRIEF)
        assert await waiting.event() == {"event": "queued", "position": 1}
        gate.open(2)
        for _ in range(2):
            await running.event()
        await worker.close()
        for each in (running, waiting):
            assert (await each.rest())[-1]["code"] == "closing"
        assert (await Visit(app, **BRIEF).start())[0] == 503
        gate.open()
        await soon(lambda: idle(worker))
        assert gate.drawn <= 3

    visited(worker, visit)


def test_nan_ends_one_comparison_or_request() -> None:
    pipes = {family: few(family) for family in ("mar", "maskgit")}
    for pipe in pipes.values():
        with torch.no_grad():
            next(pipe.model.module.parameters()).fill_(torch.nan)
    worker = served(pipes=pipes)

    async def visit(app: Any) -> None:
        for model in pipes:
            *_, error = await Visit(app, model=model, labels=[1], **BRIEF).rest()
            assert (error["event"], error["code"]) == ("error", "non_finite")
            assert "image 0 of seed 0" in error["message"]
            request = PendingRequest(read(worker.models, worker.limits, DrawRequest(model=model, labels=[1], seed=9)))
            worker.submit(request)
            with pytest.raises(ApiError, match="image 0 of seed 9") as no:
                await request.done
            assert (no.value.status_code, no.value.code) == (422, "non_finite")

    visited(worker, visit)
