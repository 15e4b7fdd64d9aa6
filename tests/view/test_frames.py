"""What is shown of a run: frames after every sub-step, which change nothing about it."""

from itertools import accumulate, islice

import numpy as np
import pytest
import torch

from recap.pipelines.codec import GREY
from recap.runs.draw import begin
from recap.runs.works import Start
from recap.view.frames import TokenState, frame_of
from tests.pipelines.test_pipeline import FAMILIES, SCHEDULE, draw, request, shared

GREY_LEVEL = round(GREY * 255)
STEPS = [(group, index) for group in SCHEDULE for index in range(len(group.steps))]


@pytest.mark.parametrize("family", FAMILIES)
def test_frames_are_the_run(family: str) -> None:
    frames = list(shared(family).stream(**request(family), seed=0, schedule=SCHEDULE))
    assert [frame.decoded for frame in frames] == list(accumulate(SCHEDULE.sizes))
    assert [frame.step for frame in frames] == list(range(1, len(SCHEDULE.steps) + 1))
    assert [frame.last for frame in frames] == [False] * (len(frames) - 1) + [True]
    kinds = ["local" if index else "full" for _, index in STEPS]
    assert [frame.evaluation for frame in frames] == kinds
    total = {"full": SCHEDULE.full, "local": SCHEDULE.local}
    positions = [f"{kind} {kinds[: place + 1].count(kind)} of {total[kind]}" for place, kind in enumerate(kinds)]
    assert [frame.position for frame in frames] == positions
    result = draw(shared(family), family)
    assert torch.equal(frames[-1].tokens, result.tokens)
    for ours, theirs in zip(frames[-1].images, result.images, strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    for frame in frames:
        assert len(repr(frame)) < 160
        assert f"{frame.step} of {frame.steps}" in repr(frame)
        assert f"{frame.decoded} of 16 tokens of 2 images" in repr(frame)
    assert frames[0]._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("family", FAMILIES)
def test_states_follow_the_schedule_and_never_turn_back(family: str) -> None:
    before = None
    frames = shared(family).stream(**request(family), seed=0, schedule=SCHEDULE)
    for frame, (group, index) in zip(frames, STEPS, strict=True):
        count = {state: (frame.states == state).sum(dim=1).tolist() for state in TokenState}
        batch = len(frame.states)
        assert count[TokenState.DRAWN] == [group.sizes[index]] * batch
        assert count[TokenState.TARGET] == [sum(group.sizes[index + 1 :])] * batch
        assert count[TokenState.CONTEXT] == [frame.decoded - group.sizes[index]] * batch
        assert torch.equal(frame.masked, (frame.states == TokenState.MASKED) | (frame.states == TokenState.TARGET))
        if before is not None:
            known = ~before.masked
            assert (frame.states[known] == TokenState.CONTEXT).all()
            assert torch.equal(frame.tokens[known], before.tokens[known])
            if index:  # the target set of a group is what its local evaluations draw
                drawn = (before.states == TokenState.TARGET) & ~frame.masked
                assert torch.equal(frame.states == TokenState.DRAWN, drawn)
        before = frame


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_are_grey_just_where_nothing_is_decoded(family: str) -> None:
    pipe = shared(family)
    frame = next(islice(pipe.stream(**request(family), seed=0, schedule=SCHEDULE), 3, None))
    stride = pipe.need_tokenizer().config.stride
    side = pipe.side // stride
    for picture, masked in zip(frame.images, frame.masked, strict=True):
        tiles = np.asarray(picture).reshape(side, stride, side, stride, 3).transpose(0, 2, 1, 3, 4)
        grey = torch.tensor((tiles.reshape(side**2, -1) == GREY_LEVEL).all(axis=1))
        assert torch.equal(grey, masked)


def test_what_is_masked_does_not_show() -> None:
    """Ids under a mask mean nothing, and a picture of a run must not depend on them."""
    pipe = shared("maskgit")
    frame = next(pipe.stream(**request("maskgit"), seed=0, schedule=SCHEDULE))
    other = torch.where(frame.masked, torch.full_like(frame.tokens, 19), frame.tokens)
    for ours, theirs in zip(frame.images, pipe.preview(other, frame.masked), strict=True):
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("family", FAMILIES)
def test_known_tokens_stay_known(family: str) -> None:
    tokens = draw(shared(family), family, output_type="latent").tokens
    masked = torch.zeros(tokens.shape[:2], dtype=torch.bool)
    masked[:, 5:14] = True
    starts = [Start(mask, tokens=own) for mask, own in zip(masked, tokens, strict=True)]
    for frame in shared(family).stream(**request(family), schedule="3+2", seed=1, starts=starts):
        assert torch.equal(frame.states == TokenState.KNOWN, ~masked)
        assert torch.equal(frame.tokens[~masked], tokens[~masked])


def test_frames_join_batches_without_what_fills_them_up_and_stay_as_they_are() -> None:
    pipe = shared("maskgit")
    works = pipe.works(list(range(5)), schedule=SCHEDULE, seed=0)
    runs = [begin(pipe, works[:3], 3), begin(pipe, works[3:], 3)]  # the second has a row too many
    frames = [
        frame_of(pipe, SCHEDULE, step, canvases, [3, 2]) for step, canvases in enumerate(zip(*runs, strict=True), 1)
    ]
    alone = list(pipe.stream(list(range(5)), schedule=SCHEDULE, seed=0))
    for ours, theirs in zip(frames, alone, strict=True):
        assert torch.equal(ours.tokens[~ours.masked], theirs.tokens[~theirs.masked])
        assert torch.equal(ours.states, theirs.states)
        assert ours.finite.tolist() == [True] * 5


def test_a_stream_checks_before_the_first_frame() -> None:
    with pytest.raises(ValueError, match="out of range"):
        shared("maskgit").stream([9], seed=0, schedule=SCHEDULE)
