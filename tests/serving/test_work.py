"""What an image looks like never hangs on who else asked for one."""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from recap import Pipeline
from recap.core.presets import Sampling
from recap.serving.limits import Limits, Refused
from recap.serving.work import Start, Wish, Work, draw, draw_lot, labels_of, schedule_of, start_of
from tests.test_pipeline import FAMILIES, pipeline

WIDTH = 4


def always(_: Work) -> bool:
    return True


@cache
def few(family: str) -> Pipeline:
    pipe = pipeline(family)
    head: Any = {"head_steps": (4, 3)} if family == "mar" else {}
    pipe.sampling = Sampling(pipe.sampling.preset, full=6, local=4, **head)
    return pipe


def start() -> Start:
    pixels = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))
    return Start(pixels.unsqueeze(0), torch.ones(1, 8, 8).triu().bool(), torch.eye(16)[3:4].bool(), False)


def work(family: str, index: int, known: int = 0) -> Work:
    pipe = few(family)
    return Work(
        schedule_of(pipe, Wish(full=1 if known else 3), Limits(), known),
        index % 5 if pipe.model.classes else None,
        9,
        index,
        start() if known else None,
    )


@cache
def alone(family: str, index: int, known: int) -> bytes:
    ((_, image),) = draw(few(family), [work(family, index, known)], WIDTH, always)
    assert isinstance(image, Image.Image)
    return image.tobytes()


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(indices=st.lists(st.integers(0, 5), min_size=1, max_size=WIDTH), known=st.sampled_from([0, 15]))
def test_bytes_do_not_depend_on_neighbours(family: str, indices: list[int], known: int) -> None:
    works = [work(family, index, known) for index in indices]
    drawn = list(draw(few(family), works, WIDTH, always))
    assert [own for own, _ in drawn] == works
    for index, (_, image) in zip(indices, drawn, strict=True):
        assert isinstance(image, Image.Image)
        assert image.tobytes() == alone(family, index, known)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=12, deadline=None)
@given(indices=st.lists(st.integers(0, 5), min_size=1, max_size=WIDTH), known=st.sampled_from([0, 15]))
def test_batches_that_are_filled_up_do_not_either(family: str, indices: list[int], known: int) -> None:
    """What other devices do, where an image alone would waste most of them."""
    pipe = few(family)
    together = draw_lot(pipe, [work(family, index, known) for index in indices], WIDTH, always)
    for index, image in zip(indices, together, strict=True):
        (single,) = draw_lot(pipe, [work(family, index, known)], WIDTH, always)
        assert isinstance(image, Image.Image)
        assert isinstance(single, Image.Image)
        assert image.tobytes() == single.tobytes()


def test_an_image_that_nobody_wants_ends_after_a_sub_step() -> None:
    asked: list[int] = []

    def wanted(own: Work) -> bool:
        asked.append(own.index)
        return own.index != 1 or asked.count(1) < 3

    drawn = draw(few("maskgit"), [work("maskgit", index) for index in range(3)], WIDTH, wanted)
    refused = [isinstance(result, Refused) for _, result in drawn]
    assert refused == [False, True, False]
    assert asked.count(1) == 3


def test_one_image_without_numbers_does_not_spoil_the_others() -> None:
    broken = start()
    broken.tokens = torch.full((1, 16, 4), torch.nan)
    whole = work("mar", 0, 15)
    image, refused = draw_lot(few("mar"), [whole, Work(whole.schedule, 1, 9, 1, broken)], WIDTH, always)
    assert isinstance(image, Image.Image)
    assert isinstance(refused, Refused)
    assert "image 1 of seed 9" in refused.message


def test_labels_follow_the_index_of_an_image() -> None:
    pipe = few("maskgit")
    whole = labels_of(pipe, [3, "1", 4], 0, 7)
    assert whole == [3, 1, 4, 3, 1, 4, 3]
    assert [labels_of(pipe, [3, "1", 4], first, 1)[0] for first in range(7)] == whole
    assert labels_of(pipe, None, 0, 5) == [0, 1, 2, 3, 4]
    assert labels_of(few("mage"), None, 2, 2) == [None, None]
    for bad in ([5], ["5"], [-1], ["rose"], []):
        with pytest.raises(ValueError, match="label"):
            labels_of(pipe, bad, 0, 1)
    with pytest.raises(ValueError, match="unconditional; leave labels out"):
        labels_of(few("mage"), [1], 0, 1)


def test_long_schedules_are_refused_before_they_are_built() -> None:
    for wish in (Wish(total=10**12), Wish(full=10**12), Wish(full=1, local=10**12)):
        with pytest.raises(Refused, match="256 are allowed"):
            schedule_of(few("maskgit"), wish, Limits())


def test_pictures_and_masks_must_fit() -> None:
    pipe, side = few("maskgit"), 8
    image, mask = Image.new("RGB", (side, side)), Image.new("L", (side, side), 255)
    ready = start_of(pipe, image, mask, None, fitted=False, paste=False)
    assert ready.masked.all()
    boxed = start_of(pipe, image.resize((40, 20)), None, [0, 0, 2, 2], fitted=True, paste=True)
    assert boxed.masked.sum() == 1
    bad: list[tuple[Any, ...]] = [
        (image, mask, [0, 0, 2, 2], "either"),
        (image, None, None, "either"),
        (image, mask.resize((9, 9)), None, "of one size"),
        (image.resize((9, 9)), mask.resize((9, 9)), None, '"fit": true'),
        (image, Image.new("L", (side, side)), None, "empty"),
        (image, None, [0, 0, 9, 9], "no part of 8 x 8"),
    ]
    for picture, white, box, message in bad:
        with pytest.raises(ValueError, match=message):
            start_of(pipe, picture, white, box, fitted=False, paste=False)
