"""The queue: places, visitors who leave, and runs that fail."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

import recap
from recap.studio.app import Studio
from recap.studio.record import Kept, Record
from tests.studio.visits import PATIENCE, Gate, Visit, opened, studio, until

Models = dict[str, Path]
BRIEF: Any = {"full": 3, "local": 2}


def visited(place: Studio, visit: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with opened(place) as app:
            await asyncio.wait_for(visit(app), PATIENCE)

    asyncio.run(run())


def idle(place: Studio) -> bool:
    return place.runs._running is None and not place.runs._waiting


def test_places_in_the_queue(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told its place at once and whenever it changes; beyond the last one there is none."""
    gate, place = Gate(monkeypatch), studio(models, queue=3)

    async def visit(app: Any) -> None:
        first = Visit(app, **BRIEF)
        assert (await first.event() or {})["event"] == "started"
        waiting: list[Visit] = []
        for position in (1, 2, 3):  # one after another: those that come at once may overtake each other
            waiting.append(Visit(app, **BRIEF, seed=position))
            assert await waiting[-1].event() == {"event": "queued", "position": position}
        status, headers = await Visit(app, **BRIEF).start()
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        await waiting[0].leave()
        assert [await each.event() for each in waiting[1:]] == [
            {"event": "queued", "position": 1},
            {"event": "queued", "position": 2},
        ]
        gate.open()
        assert (await first.rest())[-1]["event"] == "done"
        second, third = [await each.rest() for each in waiting[1:]]
        assert [events[-1]["event"] for events in (second, third)] == ["done", "done"]
        assert [event["position"] for event in third if event["event"] == "queued"] == [1]
        assert second[0]["event"] == "started"
        assert second[0]["seed"] == 2

    visited(place, visit)


@pytest.mark.parametrize("seen", [0, 1, 4])
def test_leaving_stops_a_run_before_its_next_sub_step(
    models: Models, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    gate, place = Gate(monkeypatch), studio(models)

    async def visit(app: Any) -> None:
        leaving = Visit(app, **BRIEF)
        gate.open(seen)
        for _ in range(1 + seen):
            assert await leaving.event() is not None
        await leaving.leave()
        gate.open()
        await until(lambda: idle(place))
        assert gate.drawn <= seen + 1  # the sub-step that was under way
        after = await Visit(app, **BRIEF).rest()
        assert after[-1]["event"] == "done"

    visited(place, visit)


def test_leaving_takes_effect_while_a_model_draws(models: Models) -> None:
    """Nothing is held here: thousands of steps of a diffusion head would take minutes."""

    def slow(folder: Path) -> Any:
        pipe = recap.load(folder)
        pipe.sampling = type(pipe.sampling)("mar", full=6, local=4, head_steps=(200, 200))
        return pipe

    place = studio({"mar": models["mar"]}, slow)
    place.shelf.entries["mar"].blank.sampling = slow(models["mar"]).sampling

    async def visit(app: Any) -> None:
        leaving = Visit(app, full=16, num=4)
        while (await leaving.event() or {})["event"] != "frame":
            pass
        next_one = Visit(app, full=1)  # comes when the other is sure to be drawn
        assert await next_one.event() == {"event": "queued", "position": 1}
        await leaving.leave()
        assert (await next_one.rest())[-1]["event"] == "done"

    visited(place, visit)


def test_leaving_between_the_request_and_the_first_event(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, place = Gate(monkeypatch), studio(models)

    async def visit(app: Any) -> None:
        await Visit(app, **BRIEF).leave()
        gate.open()
        await until(lambda: idle(place))
        assert (await Visit(app, **BRIEF).rest())[-1]["event"] == "done"

    visited(place, visit)


def test_values_that_are_no_numbers_end_a_run(models: Models) -> None:
    def unsound(folder: Path) -> Any:
        pipe = recap.load(folder)
        with torch.no_grad():
            next(pipe.model.module.parameters()).fill_(torch.nan)
        return pipe

    async def visit(app: Any) -> None:
        for model in ("mar", "maskgit"):
            *_, error = await Visit(app, model=model, labels=[1], **BRIEF).rest()
            assert (error["event"], error["code"]) == ("error", "unsound")
            assert "image 0 of seed 0" in error["message"]

    visited(studio(models, unsound), visit)


def test_a_fault_ends_its_run_and_no_other(
    models: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [RuntimeError("a secret of the machine"), KeyError("another"), None]

    def load(folder: Path) -> Any:
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return recap.load(folder)

    async def visit(app: Any) -> None:
        ends = [(await Visit(app, **BRIEF).rest())[-1] for _ in range(3)]
        assert [end["event"] for end in ends] == ["error", "error", "done"]
        assert {end["code"] for end in ends[:2]} == {"failed"}
        assert "secret" not in str(ends)

    with caplog.at_level(logging.CRITICAL, "recap.studio"):
        visited(studio(models, load), visit)


def test_closing_ends_everything_at_once(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, place = Gate(monkeypatch), studio(models)

    async def visit(app: Any) -> None:
        running = Visit(app, **BRIEF)
        assert (await running.event() or {})["event"] == "started"
        waiting = Visit(app, **BRIEF)
        assert await waiting.event() == {"event": "queued", "position": 1}
        gate.open(2)
        for _ in range(2):
            await running.event()
        await place.close()
        for each in (running, waiting):
            assert (await each.rest())[-1]["code"] == "closing"
        assert (await Visit(app, **BRIEF).start())[0] == 503
        gate.open()
        await until(lambda: idle(place))
        assert gate.drawn <= 3

    visited(place, visit)


def test_the_latest_runs_are_kept_within_bytes() -> None:
    def record(name: str, size: int) -> Record:
        job: Any = type("Job", (), {"upload": None})
        return Record(name, job, "cpu", "float32", "eager", [{"event": "image", "picture": bytes(size)}])

    kept = Kept(100)
    for name, size in (("a", 40), ("b", 40), ("c", 30), ("d", 200)):
        kept.add(record(name, size))
        if name == "c":
            assert [kept.find(each) is not None for each in "abc"] == [False, True, True]
    assert kept.find("d") is None
    kept.add(record("e", 40))
    found = kept.find("e")
    assert found is not None
    found.files["animation.gif"] = bytes(100)  # made later, and too large
    kept.trim()
    assert kept.find("e") is None
