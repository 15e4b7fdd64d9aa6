"""Pairs of plain and reused decoding: the same images as alone, in turn, and no ratio where they do not agree."""

import pytest
import torch

from recap import Pipeline
from recap.bench import pairs
from recap.bench.pairs import Pairs, Speedup
from recap.core.canvas import Canvas
from recap.runs.draw import draw
from recap.runs.works import Done, Failed, Work
from tests import tiny


class Watched:
    """Notes the sub-steps of whatever is drawn."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def step(self, works: list[Work], step: int, canvas: Canvas) -> None:
        self.steps.append(step)

    def done(self, results: list[Done | Failed]) -> None: ...


def test_both_ways_give_the_images_that_they_give_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, seen, observer = Pipeline(tiny.model("maskgit")), list[tuple[int, int]](), Watched()
    pipe.options = pipe.options.override(pipe.options.from_text("2+2"))
    reused, plain = (pipe.works([1, 2, 3], None, text, seed=0) for text in ("2+2", "4"))
    apart = {way: list(draw(pipe, works, decode=False)) for way, works in (("reused", reused), ("plain", plain))}
    monkeypatch.setattr(Done, "image", property(lambda done: done.tokens))  # there is no tokenizer

    def noted(pipe: Pipeline, works: list[Work], observer: object = None) -> object:
        seen.append((works[0].index, works[0].schedule.local))
        return draw(pipe, works, observer, decode=False)  # type: ignore[arg-type]

    monkeypatch.setattr(pairs, "draw", noted)
    both = Pairs({work.index: work for work in plain})
    drawn = list(both.draw(pipe, reused, observer))  # type: ignore[arg-type]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(drawn, apart["reused"], strict=True))
    assert all(torch.equal(both.images["plain"][i], apart["plain"][i].tokens) for i in range(3))  # type: ignore[arg-type]
    assert seen == [(0, 0), (0, 2), (1, 2), (1, 0), (2, 0), (2, 2)]  # whichever comes first takes turns
    assert observer.steps == [1, 2, 3, 4] * 3
    assert len(both.speedup.wall) == len(both.speedup.processor) == 3


@pytest.mark.parametrize(
    ("ratios", "clear", "words"),
    [
        ((1.5, 1.7, 1.6), True, "1.60x faster (1.50x to 1.70x over 3 pairs"),
        ((0.5, 0.52), True, "1.96x slower"),
        ((1.4,), True, "1.40x faster (one pair"),
        ((1.4, 4.8, 1.7), False, "not clear: 1.40x to 4.80x"),
        ((0.9, 1.1, 1.2), False, "not clear"),
    ],
)
def test_pairs_that_differ_have_no_ratio(ratios: tuple[float, ...], clear: bool, words: str) -> None:
    speedup = Speedup(ratios, ratios)
    assert speedup.clear == clear == ("median" in speedup.json())
    assert str(speedup).startswith(words)
