"""Drawing works: batches, memory that ends, and cancelling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from recap.cli import main
from recap.core.canvas import Canvas
from recap.core.presets import preset
from recap.core.selection import InformedOrder
from recap.pipelines import Pipeline
from recap.runs import draw
from recap.runs.works import Work
from tests.pipelines.test_pipeline import pipeline
from tests.tiny import Spied

NO_MEMORY = [torch.OutOfMemoryError("CUDA out of memory. x. y"), MemoryError(), RuntimeError("can't allocate memory")]


class Crowded:
    """Fails for more than `room` images at a time."""

    def __init__(self, room: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self.error, self.sizes, self._begin = room, error, list[int](), draw.begin
        monkeypatch.setattr(draw, "begin", self.begin)
        monkeypatch.setattr(draw, "ALONE", ())  # as on a GPU

    def begin(self, pipe: Pipeline, works: Sequence[Work], size: int) -> Iterator[Canvas]:
        self.sizes.append(size)
        if size > self.room:
            raise self.error
        return self._begin(pipe, works, size)


def works(pipe: Pipeline, num: int) -> list[Work]:
    return pipe.works([1] * num, schedule="2", seed=0)


@pytest.mark.parametrize("error", NO_MEMORY)
def test_no_memory_halves_the_batch_and_loses_nothing(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, released = pipeline("maskgit"), list[int]()
    pipe.batch_size = 16
    monkeypatch.setattr(pipe, "release", lambda: released.append(pipe.batch_size))
    crowded = Crowded(3, error, monkeypatch)
    done = draw.draw(pipe, works(pipe, 19), decode=False)
    assert [result.work.index for result in done] == list(range(19))
    assert crowded.sizes == [16, 8, 4, *[2] * 10]
    assert released == [8, 4, 2]
    assert capsys.readouterr().err.count("found no memory") == 3
    assert pipe.batch_size == 2  # and later runs begin with that


def test_other_errors_and_one_image_too_many_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline("maskgit")
    crowded = Crowded(0, MemoryError(), monkeypatch)
    with pytest.raises(MemoryError, match="no memory for one image"):
        list(draw.draw(pipe, works(pipe, 1)))
    crowded.error = RuntimeError("shapes differ")
    with pytest.raises(RuntimeError, match="shapes"):
        list(draw.draw(pipe, works(pipe, 1)))


def test_images_are_the_same_however_much_memory_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline("mar").save_pretrained(tmp_path / "m")
    argv = ["sample", "--model", str(tmp_path / "m"), "--num", "5", "--full", "2", "--local", "1", "--labels", "0,1"]
    assert main([*argv, "--batch", "1", "--out", str(tmp_path / "a")]) == 0
    Crowded(2, torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
    assert main([*argv, "--batch", "auto", "--out", str(tmp_path / "b")]) == 0
    assert "going on with 2" in capsys.readouterr().err
    for index in range(5):
        name = f"{index:06d}.png"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_images_with_a_threshold_are_drawn_one_at_a_time_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes as many evaluations as it needs, and the loop refuses to wait for others."""
    pipe, kinds = pipeline("maskgit"), list[str]()
    pipe.selector, pipe.batch_size = InformedOrder(), 4
    schedule = preset("fast-dllm-dual", 16, full=4, local=12, threshold=0.25)
    alone = [result.tokens for result in draw.draw(pipe, pipe.works(range(5), schedule=schedule, seed=0))]
    crowded = Crowded(4, MemoryError(), monkeypatch)
    pipe.model = Spied(pipe.model, lambda kind, _: kinds.append(kind))
    again = [result.tokens for result in draw.draw(pipe, pipe.works(range(5), schedule=schedule, seed=0))]
    assert crowded.sizes == [1] * 5
    assert torch.equal(torch.stack(again), torch.stack(alone))
    assert kinds.count("full") == 5 * 4
    assert 0 < kinds.count("local") < 5 * 12  # the threshold spares some
    list(draw.draw(pipe, works(pipe, 5), decode=False))
    assert crowded.sizes[5:] == [4, 4]
    with pytest.raises(ValueError, match="batches of 1"):
        list(crowded.begin(pipe, pipe.works([1, 2], schedule=schedule, seed=0), 2))


def test_a_batch_stops_when_nobody_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, gone, steps = pipeline("maskgit"), set[int](), list[tuple[int, int]]()
    pipe.batch_size = 2
    monkeypatch.setattr(draw, "ALONE", ())

    class Watch:
        def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
            steps.append((works[0].index, step))
            gone.update({0, 1, 2})  # of the first two images nobody waits any more, and of one of the second

        def done(self, results: Sequence[Any]) -> None:
            assert [result.work.index for result in results] in ([2, 3], [4])

    found = draw.draw(pipe, works(pipe, 5), Watch(), lambda work: work.index in gone)
    assert [result.work.index for result in found] == [2, 3, 4]
    assert steps == [(0, 1), (2, 1), (2, 2), (4, 1), (4, 2)]
