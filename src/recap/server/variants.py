"""One way of drawing the images or texts of a comparison, sub-step by sub-step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from recap.bench.pairs import Pairs
from recap.pipelines import TextPipeline
from recap.runs.draw import begin, ended, fewest_together, finish
from recap.runs.works import Done, Failed, Work
from recap.server import record
from recap.server.guard import ApiError
from recap.server.requests import CheckedRequest
from recap.view.frames import Frame, frame_of
from recap.view.pace import DisplayBudget
from recap.view.pieces import Piece, finished_pieces, pieces_of

Event = dict[str, Any]  # pictures in it are bytes
QUALITY = 80  # of pictures of what is under way, which are WebP


class VariantRun(ABC):
    """One way of drawing what is asked for, "plain" or "reused": its events sub-step by sub-step.

    What is timed are evaluations, draws and the final decoding, but not showing what is under way.
    """

    event: ClassVar[str]  # that brings a finished one
    number: ClassVar[str]  # what events call the number of one
    ending: ClassVar[str]  # of files

    def __init__(
        self,
        name: str,
        works: Sequence[Work],
        pipe: Any,
        pairs: Pairs,
        budget: DisplayBudget,
        watched: Callable[[], bool] = lambda: True,
    ) -> None:
        """`budget` is the time for looks at what is under way while they are `watched`."""
        self.name, self.works, self.pipe, self.pairs = name, works, pipe, pairs
        self.budget, self.watched = budget, watched
        self.schedule = works[0].schedule
        self.made: list[tuple[Done, Any]] = []  # finished ones, and what is given of them

    @property
    def seconds(self) -> float:
        """Its clock."""
        return self.pairs.seconds(self.name)

    def lots(self) -> Iterator[Iterator[list[Event]]]:
        """The events of those that are drawn together, lot by lot."""
        first = 0
        for _, group in groupby(self.works, lambda work: work.kind):
            alike = list(group)
            size = fewest_together(self.pipe, alike[0].schedule)  # the more pairs, the surer the ratio
            for at in range(0, len(alike), size):
                yield self._lot(alike[at : at + size], first + at, size)
            first += len(alike)

    def about(self) -> dict[str, Any]:
        """Its sub-steps, with the evaluation that each draws from."""
        kinds = [kind for group in self.schedule for kind in ("full", *["local"] * group.local)]
        return {"evaluations": str(self.schedule), "kinds": kinds, "tokens": list(self.schedule.sizes)}

    def _lot(self, works: Sequence[Work], first: int, size: int) -> Iterator[list[Event]]:
        """Those that are drawn together, the one at place `first` and those after it."""
        canvases, schedule = begin(self.pipe, works, size), works[0].schedule
        for step in range(1, len(schedule.steps) + 1):
            with self.pairs.timed(self.name):
                canvas = next(canvases)
                over = ended(works, canvas)
            frame = frame_of(self.pipe, schedule, step, [canvas], [len(works)])
            yield [
                {
                    "event": "frame",
                    "variant": self.name,
                    self.number: first + row,
                    "step": step,
                    "steps": frame.steps,
                    "group": frame.group,
                    "evaluation": frame.evaluation,
                    "decoded": self.counted(frame),
                    "seconds": self.seconds,
                    **self.seen(states, look),
                }
                for row, (states, look) in enumerate(
                    zip(frame.states.tolist(), self._looks(frame, works), strict=True)
                )
            ]
            if over:
                break
        with self.pairs.timed(self.name):
            results = finish(self.pipe, works, canvas.raster(), canvas.finite)
            made = [(result, self.pipe.answer(result)) for result in results if isinstance(result, Done)]
        for result in results:
            if isinstance(result, Failed):
                raise ApiError(422, "non_finite", str(result))
        self.made += made
        about = {"event": self.event, "variant": self.name, "seconds": self.seconds}
        yield [about | {self.number: place, **self.final(*one)} for place, one in enumerate(made, first)]

    def _looks(self, frame: Frame, works: Sequence[Work]) -> Sequence[Any]:
        """Something to look at for each, or nothing where finished ones follow or it would take too long."""
        if frame.last or not (frame.finite.all() and self.watched() and self.due()):
            return [None] * len(works)
        with self.budget.showing():
            return self.looks(frame, works)

    @abstractmethod
    def looks(self, frame: Frame, works: Sequence[Work]) -> Sequence[Any]:
        """What one sees of each after a sub-step."""

    def due(self) -> bool:
        """Whether there is time for a look."""
        return self.budget.due()

    def counted(self, frame: Frame) -> int:
        """How many tokens are there."""
        return frame.decoded

    @abstractmethod
    def seen(self, states: Sequence[int], look: Any) -> dict[str, Any]:
        """What an event says of one under way, whose tokens are these; `look` may be missing."""

    @abstractmethod
    def final(self, result: Done, answer: Any) -> dict[str, Any]:
        """What the last event of one says of it."""

    @abstractmethod
    def files(self) -> list[bytes]:
        """The finished ones, as the command line writes them."""

    @abstractmethod
    def asked(self, asked: CheckedRequest) -> dict[str, Any]:
        """How many there are, and what each is to be."""

    @abstractmethod
    def apart(self, one: tuple[Done, Any], other: tuple[Done, Any]) -> float:
        """How much two finished ones differ."""

    def difference(self, other: VariantRun) -> list[float]:
        """How much this variant differs from another one, one by one."""
        return [self.apart(*both) for both in zip(self.made, other.made, strict=True)]


class PictureRun(VariantRun):
    """Pictures: small files of those under way, PNGs of those that are finished."""

    event, number, ending = "image", "image", "png"

    def looks(self, frame: Frame, works: Sequence[Work]) -> Sequence[bytes]:
        return [record.encoded(each, "WEBP", quality=QUALITY, method=0) for each in frame.images]

    def seen(self, states: Sequence[int], look: bytes | None) -> dict[str, Any]:
        return {"states": "".join(map(str, states)), "picture": look}

    def final(self, result: Done, answer: Image.Image) -> dict[str, Any]:
        return {"picture": record.encoded(answer)}

    def files(self) -> list[bytes]:
        return [record.encoded(picture) for _, picture in self.made]

    def asked(self, asked: CheckedRequest) -> dict[str, Any]:
        labels = [
            None if work.label is None else {"label": work.label, "name": asked.name_of(work)} for work in asked.works
        ]
        return {"images": len(labels), "labels": labels}

    def apart(self, one: tuple[Done, Image.Image], other: tuple[Done, Image.Image]) -> float:
        """The mean absolute difference of their pixels."""
        return float(np.abs(np.asarray(one[1], np.float64) - np.asarray(other[1])).mean())


class TextRun(VariantRun):
    """Texts: their pieces, each with what it is, whole and under way."""

    event, number, ending = "text", "text", "txt"

    def looks(self, frame: Frame, works: Sequence[Work]) -> Sequence[list[Piece]]:
        rows = zip(works, frame.tokens, frame.states, strict=True)
        return [pieces_of(self.pipe, work, ids, states) for work, ids, states in rows]

    def due(self) -> bool:
        return True  # words cost next to nothing

    def counted(self, frame: Frame) -> int:
        """Those that were written: what fills a text up is of no interest."""
        return frame.decoded - frame.schedule.known

    def seen(self, states: Sequence[int], look: list[Piece] | None) -> dict[str, Any]:
        return {"pieces": look}

    def final(self, result: Done, answer: str) -> dict[str, Any]:
        return {"pieces": finished_pieces(self.pipe, result.work, result.tokens), "words": answer}

    def files(self) -> list[bytes]:
        return [text.encode() for _, text in self.made]

    def asked(self, asked: CheckedRequest) -> dict[str, Any]:
        return {"texts": len(asked.works), "prompts": asked.prompts}

    def apart(self, one: tuple[Done, str], other: tuple[Done, str]) -> float:
        """The share of the tokens that differ, of those that were written."""
        work = one[0].work
        ids, others = (self.pipe.written(work, result.tokens) for result in (one[0], other[0]))
        return float((ids != others).float().mean())


def variant_runs(
    asked: CheckedRequest,
    variants: Mapping[str, Sequence[Work]],
    pairs: Pairs,
    budget: DisplayBudget,
    watched: Callable[[], bool],
) -> list[VariantRun]:
    """The ways in which a request is drawn."""
    kind = TextRun if isinstance(asked.pipe, TextPipeline) else PictureRun
    return [kind(name, works, asked.pipe, pairs, budget, watched) for name, works in variants.items()]
