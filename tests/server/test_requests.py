"""A request as works: labels, pictures, limits, and what shrinks."""

import base64
from functools import cache
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

from recap import SamplingOptions
from recap.server.guard import ApiError
from recap.server.record import encoded
from recap.server.requests import CheckedRequest, read
from recap.server.schema import DrawRequest, Edit, Redraw, Sample
from recap.server.worker import Worker
from tests.server.served import served

SIDE = 8


@cache
def worker() -> Worker:
    return served()


def asked(request: DrawRequest) -> CheckedRequest:
    return read(worker().models, worker().limits, request)


def labels(model: str, given: Any, first: int, num: int) -> list[int | None]:
    works = asked(Sample(model=model, labels=given, num=num, first=first)).works
    assert [work.index for work in works] == list(range(first, first + num))
    return [work.label for work in works]


def test_labels_follow_the_index_of_an_image() -> None:
    whole = labels("maskgit", [3, "1", 4], 0, 7)
    assert whole == [3, 1, 4, 3, 1, 4, 3]
    assert [labels("maskgit", [3, "1", 4], first, 1)[0] for first in range(7)] == whole
    assert labels("maskgit", None, 0, 5) == [0, 1, 2, 3, 4]
    assert labels("mage", None, 2, 2) == [None, None]
    with pytest.raises(ValueError, match="depends on how many images a run has"):
        labels("maskgit", None, 2, 2)
    for bad in ([5], ["5"], ["rose"]):
        with pytest.raises(ValueError, match="label"):
            labels("maskgit", bad, 0, 1)
    with pytest.raises(ValueError, match="unconditional; leave labels out"):
        labels("mage", [1], 0, 1)


def test_a_number_is_a_class_whatever_others_are_called() -> None:
    pipe = served("maskgit").models["maskgit"]
    pipe.class_names = ("3", "2", "1", "0", "4")
    found = read({"m": pipe}, worker().limits, Sample(labels=[0, "0", 3, "3"]))
    assert [work.label for work in found.works] == [0, 3, 3, 0]


@pytest.mark.parametrize("text", ["1048576", "1000+1000", ":local=500,chain=99"])
def test_long_schedules_are_refused_before_they_are_built(text: str) -> None:
    with pytest.raises(ApiError, match="256 are allowed"):
        asked(DrawRequest(schedule=text, labels=1))


def picture(image: Image.Image) -> str:
    return base64.b64encode(encoded(image)).decode()


IMAGE, MASK = Image.new("RGB", (SIDE, SIDE)), Image.new("L", (SIDE, SIDE), 255)


@pytest.mark.parametrize("known", [0, 4, 12])
def test_own_numbers_shrink_and_given_ones_stay(known: int) -> None:
    """The model's own are 6+4; a token is 2 x 2 pixels."""
    box = {0: None, 4: [0, 2, SIDE, SIDE], 12: [0, 6, SIDE, SIDE]}[known]
    given: Any = {} if box is None else {"image": picture(IMAGE), "redraw": box}
    for text, shrinks in ((None, True), (":temperature=0.5", True), ("3+1", False)):
        found = asked(Redraw(model="maskgit", schedule=text, labels=1, num=2, **given))
        about = found.evaluations
        assert about.tokens == 16 - known
        wanted = {0: (6, 4), 4: (5, 3), 12: (2, 1)}[known] if shrinks else (3, 1)
        assert (about.full, about.local) == wanted
        again = SamplingOptions.from_text(about.options).schedule(16 - known, known)
        assert again == found.works[0].schedule
        plain = found.plain()
        assert (plain[0].schedule.full, plain[0].schedule.local) == (sum(wanted), 0)
        assert [work.key for work in plain] == [work.key for work in found.works]


def test_pictures_and_masks_must_fit() -> None:
    def masked(**given: Any) -> Any:
        start = asked(Edit(**{"labels": 1, "image": picture(IMAGE), **given})).works[0].start
        assert start is not None
        return start.masked

    assert masked(mask=picture(MASK)).all()
    assert masked(image=picture(IMAGE.resize((40, 20))), redraw=[0, 0, 2, 2], fit=True).sum() == 1
    with pytest.raises(ValueError, match="crop and scale it first"):
        masked(image=picture(IMAGE.resize((9, 9))), redraw=[0, 0, 2, 2])


def test_models_without_a_tokenizer_are_refused() -> None:
    pipe = served("maskgit").models["maskgit"]
    pipe.tokenizer = None
    with pytest.raises(ValueError, match="has no tokenizer"):
        Worker({"m": pipe})
