"""Pairs of plain and reused decoding: the same images as alone, in turn, and no ratio where they do not agree."""

import pytest
import torch

from recap import Pipeline
from recap.bench import pairs
from recap.bench.pairs import DrawInTurn, Pairs, Speedup
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
        seen.extend((work.index, work.schedule.local) for work in works)
        return draw(pipe, works, observer, decode=False)  # type: ignore[arg-type]

    monkeypatch.setattr(pairs, "draw", noted)
    both = DrawInTurn(pipe, plain, pipe.works([4], None, "1+1", seed=9))
    assert not seen  # what sets all up waits until something is drawn
    drawn = [done for work in reused for done in both(pipe, [work], observer)]  # type: ignore[arg-type]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(drawn, apart["reused"], strict=True))
    assert all(torch.equal(both.answers["plain"][i], apart["plain"][i].tokens) for i in range(3))
    assert seen == [(0, 1), (0, 0), (0, 2), (1, 2), (1, 0), (2, 0), (2, 2)]  # whichever comes first takes turns
    assert observer.steps == [1, 2, 3, 4] * 3
    assert len(both.pairs.speedup.wall) == len(both.pairs.speedup.processor) == 3


def test_plain_images_with_nan_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipeline(tiny.model("maskgit"))
    reused, plain = (pipe.works([1], None, text, seed=0) for text in ("2+2", "4"))
    monkeypatch.setattr(Done, "image", property(lambda done: done.tokens))  # there is no tokenizer
    monkeypatch.setattr(pairs, "draw", lambda pipe, works, *rest: (Failed(w, torch.zeros(1)) for w in works))
    with pytest.raises(FloatingPointError, match="drawn plainly, image 0 of seed 0"):
        list(DrawInTurn(pipe, plain, ())(pipe, reused, None))


def test_a_pair_counts_what_is_timed_and_nothing_else() -> None:
    now = [0.0]
    both = Pairs(lambda: now[0])

    def took(way: str, seconds: float) -> None:
        with both.timed(way):
            now[0] += seconds
        now[0] += 100

    assert both.begin() == ["plain", "reused"]
    for way, seconds in (("plain", 2.0), ("reused", 1.0), ("plain", 2.0)):  # sub-step by sub-step is a pair as well
        took(way, seconds)
    assert both.begin() == ["reused", "plain"]
    took("reused", 1.0)
    took("plain", 3.0)
    assert both.speedup.wall == (4.0, 3.0)
    assert (both.seconds("plain"), both.seconds("reused")) == (7.0, 2.0)


@pytest.mark.parametrize(
    ("ratios", "clear", "words"),
    [
        ((1.5, 1.7, 1.6), True, "1.60x faster (1.50x to 1.70x over 3 pairs, 1.60x in processor time)"),
        ((0.5, 0.52), True, "1.96x slower"),
        ((1.4,), True, "1.40x faster (one pair, "),
        ((1.4, 4.8, 1.7), False, "not clear (1.40x to 4.80x over 3 pairs, 1.70x in processor time)"),
        ((0.9, 1.1, 1.2), False, "not clear"),
    ],
)
def test_pairs_that_differ_have_no_ratio(ratios: tuple[float, ...], clear: bool, words: str) -> None:
    speedup = Speedup(ratios, ratios)
    assert speedup.clear == clear == (speedup.json()["median"] is not None)
    assert str(speedup).startswith(words)
