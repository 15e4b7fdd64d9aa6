"""Plain decoding and reuse beside each other, one by one: of a pair, whichever clock is behind goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial

from recap.bench.pairs import Pairs
from recap.bench.timing import synchronized_time
from recap.runs.record import versions
from recap.server import record
from recap.server.guard import ApiError
from recap.server.requests import CheckedRequest, PendingRequest
from recap.server.variants import Event, VariantRun, variant_runs
from recap.view.pace import DisplayBudget

SHARE = 1 / 3  # of all time that pictures of what is under way may take: half as much as the run itself
LAST = ("done", "error")
BACKLOG = 64  # events that a visitor may be behind before it is sent no more of them


class Comparison(PendingRequest):
    """What one request asks for in one or two variants, and the events that its visitor has not been sent yet."""

    def __init__(self, asked: CheckedRequest, *, both: bool = True) -> None:
        super().__init__(asked)
        self.both = both and asked.works[0].schedule.local > 0
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def watched(self) -> bool:
        """Whether the visitor reads about as fast as the run goes."""
        return self._events.qsize() <= BACKLOG

    def tell(self, event: Event) -> None:
        """Send an event; the last one ends it all."""
        if not self.done.done():
            self._events.put_nowait(event)
            if event["event"] in LAST:
                self.done.set_result(None)
            if event["event"] == "done":
                self.finished = dict.fromkeys(self.asked.works)

    def moved(self, position: int) -> None:
        self.tell({"event": "queued", "position": position})

    def fail(self, refused: ApiError) -> None:
        self.tell({"event": "error", "code": refused.code, "message": refused.detail})

    async def lines(self) -> AsyncIterator[bytes]:
        """All events as JSON in ASCII, one a line, their pictures as base64 text."""
        event: Event = {"event": None}
        while event["event"] not in LAST:
            event = await self._events.get()
            yield json.dumps(event, default=record.as_text, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def compare(request: Comparison) -> Iterator[Event]:
    """Draw all variants and tell of every sub-step; the last event has the results and their record as an archive."""
    asked = request.asked
    clock = partial(synchronized_time, asked.pipe.device)
    variants = {"reused" if asked.works[0].schedule.local else "plain": asked.works}
    if request.both:
        variants = {"plain": asked.plain(), **variants}
    pairs, budget = Pairs(clock, list(variants)), DisplayBudget(share=SHARE, clock=clock)
    runs = variant_runs(asked, variants, pairs, budget, request.watched)
    started = {
        "model": asked.model,
        **runs[0].asked(asked),
        "seed": asked.request.seed,
        "schedule": asked.evaluations.model_dump(),
        "variants": [{"variant": run.name, **run.about()} for run in runs],
    }
    yield {"event": "started", **started}
    yield from in_turn(runs, pairs)
    done = {
        "seconds": {name: pairs.seconds(name) for name in variants},
        "speedup": pairs.speedup.json() if len(runs) > 1 else None,
        "difference": runs[0].difference(runs[1]) if len(runs) > 1 else None,
        "commands": {run.name: line for run in runs if (line := record.command(asked, run.name)) is not None},
    }
    text = json.dumps(started | done | {"device": str(asked.pipe.device), "versions": versions()}, indent=2)
    files = {"run.json": text.encode() + b"\n", **asked.files}
    for run in runs:
        files |= {f"{run.name}/{place:06d}.{run.ending}": file for place, file in enumerate(run.files())}
    yield {"event": "done", **done, "archive": record.archive(files)}


def in_turn(runs: Sequence[VariantRun], pairs: Pairs) -> Iterator[Event]:
    """The events of all runs, pair by pair; within one the run whose clock is behind goes on."""
    for lots in zip(*(run.lots() for run in runs), strict=True):
        lot = {run.name: events for run, events in zip(runs, lots, strict=True)}
        racing = pairs.begin()
        while racing:
            name = min(racing, key=lambda name: pairs.spent[name][-1].wall)
            events = next(lot[name], None)
            if events is None:
                racing.remove(name)
            else:
                yield from events
