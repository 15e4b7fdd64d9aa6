"""Figures by several processes: the same as by one, from shards that survive whatever ends a process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.cli import measuring
from recap.evaluation import shards as runner
from recap.evaluation.features import look
from recap.evaluation.metrics import FeatureStatistics
from tests.evaluation.watcher import Watcher
from tests.pipelines.test_pipeline import pipeline
from tests.runs.runs import Command, digest, together, until

pytestmark = pytest.mark.xdist_group("ranks")


def watched() -> None:
    """A small network in the place of Inception."""
    vars(measuring)["load_inception"] = lambda path: Watcher()


def watched_and_slow() -> None:
    """The same, and slow enough to be ended amid the run."""
    watched()

    def slow(net: Any, images: Tensor) -> Any:
        time.sleep(0.3)
        return look(net, images)

    vars(runner)["look"] = slow


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("model")
    model = pipeline("maskgit").save_pretrained(place / "m")
    FeatureStatistics.of(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).save(place / "stats.npz")
    stats = str(place / "stats.npz")
    return ["evaluate", "--model", str(model), "--stats", stats, "--full", "3", "--local", "1", "--num", "24"]


@pytest.fixture(scope="module")
def whole(argv: list[str], tmp_path_factory: pytest.TempPathFactory) -> float:
    """The figure of a run that nothing happens to."""
    out = tmp_path_factory.mktemp("whole")
    assert Command(*argv, "--out", str(out), log=out / "log", setup=watched).wait() == 0
    return fid(out)


def fid(out: Path) -> float:
    result = json.loads((out / "result.json").read_text())
    assert result["num"] == 24
    return float(result["figures"]["fid"])


def shards(out: Path) -> dict[str, str]:
    return {path.name: digest(path) for path in (out / "features").glob("[0-9]*.npz")}


@pytest.mark.parametrize(("world", "batch"), [(1, 5), (2, 5), (3, 2)])
def test_any_number_of_processes_gives_the_same_figure(
    world: int, batch: int, argv: list[str], whole: float, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    commands = together(world, *argv, "--batch", str(batch), "--out", str(out), log=tmp_path / "log", setup=watched)
    assert [one.wait() for one in commands] == [0] * world, commands[0].log.read_text()
    assert fid(out) == whole
    assert {path.name for path in out.iterdir()} == {"features", "result.json"}


def test_a_killed_evaluation_goes_on_with_other_processes(argv: list[str], whole: float, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [*argv, "--batch", "2", "--out", str(out)]
    commands = together(3, *options, log=tmp_path / "first", setup=watched_and_slow)
    until(lambda: len(shards(out)) >= 3)
    for one in commands:
        one.signal(signal.SIGKILL)
    kept = shards(out)
    commands = together(2, *options, log=tmp_path / "second", setup=watched_and_slow)
    until(lambda: len(shards(out)) >= len(kept) + 2)
    stopped = commands[0].signal(signal.SIGTERM)
    assert stopped == 128 + signal.SIGTERM
    assert "of 24 images are in" in commands[0].said
    commands[1].signal(signal.SIGKILL)
    later = shards(out)
    assert kept.items() < later.items()  # nothing that was there was made again
    assert Command(*argv, "--batch", "7", "--out", str(out), log=tmp_path / "third", setup=watched).wait() == 0
    assert later.items() < shards(out).items()
    assert fid(out) == whole
