"""A request as works: labels, pictures, limits, what shrinks, and which models stay in memory."""

from functools import cache
from typing import Any

import pytest
import torch
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

import base64

from recap import SamplingOptions
from recap.runs.works import Start
from recap.server import schema
from recap.server.app import _asked
from recap.server.files import png
from recap.server.limits import ApiError
from recap.server.models import Entry, ModelCache
from recap.server.service import Service
from tests.server.served import few, served, small

SIDE = 8


@cache
def service() -> Service:
    return served()


def labels(model: str, given: Any, first: int, num: int) -> list[int | None]:
    entry = service().models.entry(model)
    asked = entry.asked(service().limits, SamplingOptions(), labels=given, num=num, first=first)
    assert [work.index for work in asked.works] == list(range(first, first + num))
    return [work.label for work in asked.works]


def test_labels_follow_the_index_of_an_image() -> None:
    whole = labels("maskgit", [3, "1", 4], 0, 7)
    assert whole == [3, 1, 4, 3, 1, 4, 3]
    assert [labels("maskgit", [3, "1", 4], first, 1)[0] for first in range(7)] == whole
    assert labels("maskgit", None, 0, 5) == [0, 1, 2, 3, 4]
    assert labels("mage", None, 2, 2) == [None, None]
    for bad in ([5], ["5"], [-1], ["rose"], []):
        with pytest.raises(ValueError, match="label"):
            labels("maskgit", bad, 0, 1)
    with pytest.raises(ValueError, match="unconditional; leave labels out"):
        labels("mage", [1], 0, 1)


def test_long_schedules_are_refused_before_they_are_built() -> None:
    entry = service().models.entry("maskgit")
    for text in ("1048576", "1000+1000", ":local=500,chain=99"):
        with pytest.raises(ApiError, match="256 are allowed"):
            entry.asked(service().limits, SamplingOptions.from_text(text), labels=[1], num=1)


@pytest.mark.parametrize("known", [0, 4, 12])
def test_own_numbers_shrink_and_say_so_and_given_ones_stay(known: int) -> None:
    """The model's own are 6+4."""
    masked = torch.arange(16) >= known
    start = Start(masked, torch.zeros(3, SIDE, SIDE)) if known else None
    entry = service().models.entry("maskgit")
    for text, shrinks in (("", True), (":temperature=0.5", True), ("3+1", False)):
        options = SamplingOptions.from_text(text) if text else SamplingOptions()
        asked = entry.asked(service().limits, options, labels=[1], num=2, start=start)
        about = asked.evaluations
        assert about["tokens"] == 16 - known
        assert (about["shrunk_from"] == "6+4") is (known > 0 and shrinks)
        wanted = {0: (6, 4), 4: (5, 3), 12: (2, 1)}[known] if shrinks else (3, 1)
        assert (about["full"], about["local"]) == wanted
        again = SamplingOptions.from_text(about["options"]).schedule(16 - known, known)
        assert again == asked.works[0].schedule
        plain = entry.plain(asked)
        assert (plain[0].schedule.full, plain[0].schedule.local) == (sum(wanted), 0)
        assert [work.key for work in plain] == [work.key for work in asked.works]


def picture(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


def test_pictures_and_masks_must_fit() -> None:
    image, mask = Image.new("RGB", (SIDE, SIDE)), Image.new("L", (SIDE, SIDE), 255)

    def masked(**given: Any) -> Any:
        edit = schema.Edit(**{"labels": 1, "image": picture(image), **given})
        start = _asked(service(), edit, 0)[1].works[0].start
        assert start is not None
        return start.masked

    assert masked(mask=picture(mask)).all()
    assert masked(image=picture(image.resize((40, 20))), redraw=[0, 0, 2, 2], fit=True).sum() == 1
    bad: list[tuple[Any, str]] = [
        ({"mask": picture(mask), "redraw": [0, 0, 2, 2]}, "either"),
        ({}, "either"),
        ({"mask": picture(mask.resize((9, 9)))}, "of one size"),
        ({"image": picture(image.resize((9, 9))), "redraw": [0, 0, 2, 2]}, '"fit": true'),
        ({"mask": picture(Image.new("L", (SIDE, SIDE)))}, "empty"),
        ({"redraw": [0, 0, 9, 9]}, "no part of 8 x 8"),
    ]
    for given, message in bad:
        with pytest.raises(ValueError, match=message):
            masked(**given)


def test_models_are_described_without_loading_them_and_few_stay_in_memory() -> None:
    loaded = []

    def entry(family: str) -> Entry:
        pipe = few(family)
        return Entry(family, pipe, lambda: loaded.append(family) or pipe)

    cache = ModelCache([entry(family) for family in ("maskgit", "mar", "mage")], small(max_models=2))
    assert [each.about()["name"] for each in cache.entries.values()] == ["maskgit", "mar", "mage"]
    assert loaded == []
    for name in ("maskgit", "mar", "maskgit", "mage", "maskgit", "mar"):
        pipe, _ = cache.loaded(cache.entry(name))
        assert pipe.batch_size == cache.limits.batch
    assert loaded == ["maskgit", "mar", "mage", "mar"]


def test_folders_are_read_without_weights(tmp_path: Any) -> None:
    few("mar").save_pretrained(tmp_path / "m")
    entry = Entry.read("m", tmp_path / "m", lambda _: pytest.fail("nothing is loaded"))
    assert next(entry.blank.model.module.parameters()).device.type == "meta"
    assert entry.about()["schedule"] == Entry.of("m", few("mar")).about()["schedule"]
    (tmp_path / "m" / "tokenizer" / "config.json").unlink()
    with pytest.raises(ValueError, match="m has no tokenizer to make images with"):
        Entry.read("m", tmp_path / "m", lambda _: pytest.fail("nothing is loaded"))
