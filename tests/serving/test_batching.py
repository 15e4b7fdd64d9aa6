"""The queue: who is drawn with whom, who is turned away, and who is forgotten."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap import Schedule, cosine
from recap.serving.batching import Batcher
from recap.serving.limits import Limits, Refused
from recap.serving.metrics import Metrics
from recap.serving.work import Result, Wanted, Work

SCHEDULES = [cosine(16, full=4), cosine(16, full=4, local=2), cosine(16, full=4, guidance=2.0)]


def works(kind: int, num: int, seed: int = 0) -> list[Work]:
    return [Work(SCHEDULES[kind], None, seed, index) for index in range(num)]


class Model:
    """Draws the index and seed of an image as its size, when it is let."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[list[Work]] = []
        self.go = threading.Event()
        self.began = threading.Event()
        self.abandoned = 0
        if not held:
            self.go.set()

    def __call__(self, batch: Sequence[Work], wanted: Wanted) -> Iterator[tuple[Work, Result]]:
        self.batches.append(list(batch))
        self.began.set()
        while not self.go.wait(0.005):
            if not any(map(wanted, batch)):
                self.abandoned += 1
                yield from ((work, Refused(499, "left", "")) for work in batch)
                return
        for work in batch:
            if work.seed == 13:
                raise RuntimeError("a secret of the machine")
            yield work, Image.new("L", (work.index + 1, work.seed + 1))


def run(model: Model, use: Callable[[Batcher, Metrics], Awaitable[Any]], **limits: int) -> Any:
    async def inside() -> Any:
        metrics = Metrics()
        batcher = Batcher(model, Limits(**{"batch": 4, "queue": 8, "max_images": 8, **limits}), metrics)
        runner = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(use(batcher, metrics), 30)
        finally:
            await batcher.close(0)
            runner.cancel()
            await asyncio.wait({runner})
            batcher.release()

    return asyncio.run(inside())


async def begun(model: Model) -> None:
    await asyncio.to_thread(model.began.wait, 10)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8), st.integers(0, 9)), max_size=12))
def test_everybody_gets_their_own_images_and_batches_share_a_schedule(asked: list[tuple[int, int, int]]) -> None:
    model = Model()

    async def use(batcher: Batcher, _: Metrics) -> None:
        tickets = [(batcher.submit(works(*each)), each) for each in asked]
        for ticket, (_kind, num, seed) in tickets:
            assert [image.size for image in await ticket.done] == [(i + 1, seed + 1) for i in range(num)]

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

    async def use(batcher: Batcher, _: Metrics) -> None:
        first = batcher.submit(works(0, 1))
        await begun(model)
        later = [batcher.submit(works(kind, 2, seed)) for seed, kind in enumerate((1, 0, 1, 0))]
        model.go.set()
        await asyncio.gather(first.done, *(ticket.done for ticket in later))

    run(model, use)
    assert [[work.seed for work in batch] for batch in model.batches] == [[0], [0, 0, 2, 2], [1, 1, 3, 3]]


def test_a_full_queue_says_when_to_come_again() -> None:
    model = Model(held=True)

    async def use(batcher: Batcher, metrics: Metrics) -> None:
        running = batcher.submit(works(0, 4))
        await begun(model)
        waiting = batcher.submit(works(0, 6))
        with pytest.raises(Refused, match=r"6 of 8 places are taken and 3 were asked for; come again in \d+ s") as no:
            batcher.submit(works(0, 3))
        assert no.value.status == 429
        assert no.value.retry_after is not None
        assert no.value.retry_after >= 1
        assert "recap_queue_images 6" in metrics.text()
        more = batcher.submit(works(1, 2))
        model.go.set()
        await asyncio.gather(running.done, waiting.done, more.done)

    run(model, use)


def test_who_leaves_is_forgotten() -> None:
    model = Model(held=True)

    async def use(batcher: Batcher, metrics: Metrics) -> None:
        lonely = batcher.submit(works(0, 2, 1))
        await begun(model)
        waiting, other = batcher.submit(works(0, 3, 2)), batcher.submit(works(0, 1, 3))
        batcher.drop(waiting)
        assert "recap_queue_images 1" in metrics.text()
        model.began.clear()
        batcher.drop(lonely)  # nobody else is in its batch
        await begun(model)
        assert model.abandoned == 1
        joined = batcher.submit(works(0, 1, 4))
        model.go.set()
        await asyncio.gather(other.done, joined.done)
        assert "recap_images_dropped_total 2" in metrics.text()

    run(model, use)
    assert [[work.seed for work in batch] for batch in model.batches] == [[1, 1], [3], [4]]


def test_a_batch_goes_on_for_the_others_in_it() -> None:
    model = Model(held=True)

    async def use(batcher: Batcher, _: Metrics) -> None:
        leaving, staying = batcher.submit(works(0, 1, 1)), batcher.submit(works(0, 1, 2))
        await begun(model)
        batcher.drop(leaving)
        await asyncio.sleep(0.05)
        model.go.set()
        assert (await staying.done)[0].size == (1, 3)

    run(model, use)
    assert model.abandoned == 0
    assert len(model.batches) == 1


def test_a_fault_ends_one_batch_and_says_nothing_of_the_machine() -> None:
    async def use(batcher: Batcher, _: Metrics) -> None:
        before, broken, whole = (batcher.submit(works(*each)) for each in ((0, 1, 2), (0, 1, 13), (1, 1, 2)))
        assert len(await before.done) == 1  # finished before the fault came
        with pytest.raises(Refused) as no:
            await broken.done
        assert (no.value.status, "secret" in no.value.message) == (500, False)
        assert len(await whole.done) == 1

    run(Model(), use)


def test_closing_finishes_what_was_accepted() -> None:
    async def use(batcher: Batcher, _: Metrics) -> None:
        tickets = [batcher.submit(works(kind, 2, kind)) for kind in range(3)]
        await batcher.close(20)
        assert [len(ticket.done.result()) for ticket in tickets] == [2, 2, 2]
        with pytest.raises(Refused) as no:
            batcher.submit(works(0, 1))
        assert no.value.status == 503

    run(Model(), use)


def test_closing_returns_what_cannot_be_finished() -> None:
    model = Model(held=True)

    async def use(batcher: Batcher, _: Metrics) -> None:
        tickets = [batcher.submit(works(kind, 2)) for kind in range(2)]
        await begun(model)
        await batcher.close(0.05)
        for ticket in tickets:
            with pytest.raises(Refused) as no:
                await ticket.done
            assert no.value.status == 503

    run(model, use)
    assert (len(model.batches), model.abandoned) == (1, 1)
