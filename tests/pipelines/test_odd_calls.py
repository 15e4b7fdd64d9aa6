"""What people do around a pipeline, and numbers that no run can have."""

import argparse
import tracemalloc
from typing import Any

import pytest
import torch
from torch import nn

from recap.cli import main
from recap.cli.options import labels_of
from recap.pipelines.inputs import MOST_IMAGES
from tests.pipelines.test_pipeline import pipeline
from tests.tiny import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_pipeline_changes_nothing(family: str, dtype: torch.dtype) -> None:
    pipe = pipeline(family)
    asked: dict[str, Any] = {"num_images": 2, "seed": 0, "schedule": "3+2", "output_type": "pt"}
    if pipe.model.classes:
        asked["labels"] = [1, 2]
    streamed = {name: value for name, value in asked.items() if name != "output_type"}
    alone = pipe(**asked)
    with torch.autocast("cpu", dtype):
        around, frames = pipe(**asked), list(pipe.stream(**streamed))
        again = pipe.encode(alone.images)
    assert torch.equal(alone.images, around.images)
    assert torch.equal(alone.tokens, around.tokens)
    assert torch.equal(frames[-1].tokens, alone.tokens)
    assert torch.equal(again, pipe.encode(alone.images))


def test_results_may_go_through_layers_that_learn() -> None:
    pipe, layer = pipeline("mar"), nn.Linear(4, 1)
    drawn = pipe([1], seed=0, schedule="2", output_type="pt")
    for values in (drawn.tokens, pipe.encode(drawn.images), pipe.decode(drawn.tokens, "pt"), drawn.images):
        layer(values.flatten()[:4]).backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("schedule", [4, 4.5, ["48+16"], {"full": 4}])
def test_schedules_of_another_kind_are_refused(schedule: Any) -> None:
    with pytest.raises(ValueError, match="says not how to sample; give a text like '48\\+16'"):
        pipeline("maskgit")([1], schedule=schedule, seed=0)


@pytest.mark.parametrize("num", [MOST_IMAGES + 1, 2**31, 10**30, 0, -1])
def test_runs_that_cannot_be_are_refused_at_once(num: int) -> None:
    pipe = pipeline("maskgit")
    tracemalloc.start()
    with pytest.raises(ValueError, match="at most 1,048,576"):
        pipe.works([1], num, "2", seed=0)
    for text in (None, "1", "random"):
        args = argparse.Namespace(labels=text, num=num, per_class=None, seed=0)
        with pytest.raises(ValueError, match="--num is"):
            labels_of(args, pipe, 4)
    if num > 0:
        args = argparse.Namespace(labels=None, num=None, per_class=num // 2, seed=0)
        with pytest.raises(ValueError, match="--per-class"):
            labels_of(args, pipe, 4)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_a_large_run_is_planned_in_little_memory() -> None:
    """Generators are large, and made one at a time."""
    tracemalloc.start()
    works = pipeline("maskgit").works([1], 20_000, "2", seed=0)
    assert tracemalloc.get_traced_memory()[1] < 20_000 * 400
    tracemalloc.stop()
    assert works[7].key == pipeline("maskgit").works([1], 1, "2", seed=0, first=7)[0].key


def test_as_many_images_as_are_said(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pipeline("maskgit").save_pretrained("m")
    argv = ["sample", "--model", "m", "--schedule", "2", "--labels", "0,1,2", "--num", "2", "--out", "out"]
    assert main(argv) == 0
    assert [path.name for path in sorted(tmp_path.glob("out/0*.png"))] == ["000000.png", "000001.png"]


@pytest.mark.parametrize("part", ["left:inf", "left:nan", "left:-inf", "center:1e400", "left:1", "top:0"])
def test_shares_that_are_none(part: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder, picture = tmp_path / "m", tmp_path / "a.png"
    pipe = pipeline("maskgit")
    pipe.save_pretrained(folder)
    pipe([1], schedule="2", seed=0).images[0].save(picture)
    argv = ["edit", "--model", str(folder), "--image", str(picture), "--labels", "1", "--keep", part]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    assert "would keep all or nothing; give one between 0 and 1" in capsys.readouterr().err
