"""What is shown of a run: frames after every sub-step, which change nothing about it."""

from itertools import accumulate, count, islice
from typing import Any

import numpy as np
import pytest
import torch

from recap import Cell, Known
from recap.pipeline import GREY
from tests.test_pipeline import FAMILIES, SCHEDULE, draw, request, shared

GREY_LEVEL = round(GREY * 255)


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_are_the_run(family: str) -> None:
    pipe = shared(family)
    frames = list(pipe.stream(**request(family), seed=0, schedule=SCHEDULE))
    assert [frame.decoded for frame in frames] == list(accumulate(SCHEDULE.sizes))
    assert [frame.step for frame in frames] == list(range(1, len(SCHEDULE.steps) + 1))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    kinds = [kind for group in SCHEDULE for kind in ("full", *["local"] * group.local)]
    assert [frame.evaluation for frame in frames] == kinds
    result = draw(pipe, family)
    assert torch.equal(frames[-1].tokens, result.tokens)
    for ours, theirs in zip(frames[-1].images, result.images, strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("family", FAMILIES)
def test_cells_follow_the_schedule_and_never_turn_back(family: str) -> None:
    pipe = shared(family)
    before = None
    steps = [(group, index) for group in SCHEDULE for index in range(len(group.steps))]
    frames = pipe.stream(**request(family), seed=0, schedule=SCHEDULE)
    for frame, (group, index) in zip(frames, steps, strict=True):
        count = {cell: (frame.cells == cell).sum(dim=1).tolist() for cell in Cell}
        batch = len(frame.cells)
        assert count[Cell.DRAWN] == [group.sizes[index]] * batch
        assert count[Cell.TARGET] == [sum(group.sizes[index + 1 :])] * batch
        assert count[Cell.CONTEXT] == [frame.decoded - group.sizes[index]] * batch
        assert torch.equal(frame.masked, (frame.cells == Cell.MASKED) | (frame.cells == Cell.TARGET))
        if before is not None:
            known = ~before.masked
            assert (frame.cells[known] == Cell.CONTEXT).all()
            assert torch.equal(frame.tokens[known], before.tokens[known])
            if index:  # the target set of a group is what its local evaluations draw
                assert torch.equal(frame.cells == Cell.DRAWN, (before.cells == Cell.TARGET) & ~frame.masked)
        before = frame


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_grey_just_where_nothing_is_decoded(family: str) -> None:
    pipe = shared(family)
    frame = next(islice(pipe.stream(**request(family), seed=0, schedule=SCHEDULE), 3, None))
    stride = pipe.need_tokenizer().config.stride
    for picture, masked in zip(frame.images, frame.masked, strict=True):
        side = pipe.side // stride
        tiles = (
            np.asarray(picture).reshape(side, stride, side, stride, 3).transpose(0, 2, 1, 3, 4).reshape(side**2, -1)
        )
        grey = torch.tensor((tiles == GREY_LEVEL).all(axis=1))
        assert torch.equal(grey, masked)


def test_what_is_masked_does_not_show() -> None:
    """Ids under a mask mean nothing, and a picture of a run must not hang on them."""
    pipe = shared("maskgit")
    frame = next(pipe.stream(**request("maskgit"), seed=0, schedule=SCHEDULE))
    other = torch.where(frame.masked, torch.full_like(frame.tokens, 19), frame.tokens)
    for ours, theirs in zip(frame.images, pipe.preview(other, frame.masked), strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_looking_takes_no_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count()  # one second for every look at it
    monkeypatch.setattr("recap.frames.now", lambda _: next(clock))
    seconds = []
    for frame in shared("maskgit").stream(**request("maskgit"), seed=0, schedule=SCHEDULE):
        seconds.append(frame.seconds)
        for _ in range(10):
            next(clock)
    assert seconds == list(range(1, len(SCHEDULE.steps) + 1))


@pytest.mark.parametrize("family", FAMILIES)
def test_known_tokens_stay_known(family: str) -> None:
    pipe = shared(family)
    tokens = draw(pipe, family, output_type="latent").tokens
    masked = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    masked[:, 5:14] = True
    options: Any = {"schedule": SCHEDULE, "seed": 1, "known": Known(tokens, masked)}
    for frame in pipe.stream(**request(family), **options):
        assert torch.equal(frame.cells == Cell.KNOWN, ~masked)
        assert torch.equal(frame.tokens[~masked], tokens[~masked])


def test_a_notebook_shows_a_frame_as_a_picture() -> None:
    frame = next(shared("mar").stream(**request("mar"), seed=0, schedule=SCHEDULE))
    assert frame._repr_png_().startswith(b"\x89PNG")


def test_a_stream_checks_before_the_first_frame() -> None:
    with pytest.raises(ValueError, match="out of range"):
        shared("maskgit").stream([9], seed=0, schedule=SCHEDULE)
