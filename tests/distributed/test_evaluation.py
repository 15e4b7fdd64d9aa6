"""Figures by several processes: the same as by one, kept as sums, and resumable."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import torch

from recap.cli import evaluate as command
from recap.evaluation import evaluate as runner
from recap.evaluation.evaluate import Evaluation, gather, read_state, write_state
from recap.evaluation.fid import FeatureStatistics
from recap.evaluation.indices import NumberSet
from recap.evaluation.measure import Measurement
from tests.distributed.runs import Command, together, until
from tests.evaluation.watcher import Watcher
from tests.test_pipeline import pipeline

pytestmark = pytest.mark.xdist_group("ranks")


def watched() -> None:
    """A small network in the place of Inception, and a state after every chunk."""
    vars(command)["load_inception"] = lambda path: Watcher()
    runner.SAVE_EVERY = 0.0


def watched_and_slow() -> None:
    watched()
    add = Measurement.add

    def slow(self: Measurement, *args: object) -> None:
        time.sleep(0.3)
        add(self, *args)  # type: ignore[arg-type]

    Measurement.add = slow  # type: ignore[method-assign, assignment]


@pytest.fixture(scope="module")
def argv(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("model")
    model = pipeline("maskgit").save_pretrained(place / "m")
    FeatureStatistics.of(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).save(place / "stats.npz")
    stats = str(place / "stats.npz")
    return ["evaluate", "--model", str(model), "--stats", stats, "--full", "3", "--local", "1", "--num", "24"]


def fid(out: Path) -> float:
    result = json.loads((out / "result.json").read_text())
    assert result["num"] == 24
    return float(result["figures"]["fid"])


def test_any_number_of_processes_gives_the_same_figure(argv: list[str], tmp_path: Path) -> None:
    figures = []
    for world, batch in ((1, 5), (2, 5), (3, 2)):
        out = tmp_path / str(world)
        options = [*argv, "--batch", str(batch), "--out", str(out)]
        commands = together(world, *options, log=tmp_path / f"log{world}", setup=watched)
        assert [one.wait() for one in commands] == [0] * world, commands[0].log.read_text()
        figures.append(fid(out))
        assert {path.name for path in out.iterdir()} == {".lock", "state.pt", "result.json"}
    assert figures[1:] == pytest.approx([figures[0]] * 2, abs=1e-6)


def test_a_killed_evaluation_goes_on_with_other_processes(argv: list[str], tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert Command(*argv, "--out", str(whole), log=tmp_path / "log", setup=watched).wait() == 0
    options = [*argv, "--batch", "2", "--out", str(out)]
    commands = together(3, *options, log=tmp_path / "first", setup=watched_and_slow)
    until(lambda: (out / "state.1.pt").exists() and (out / "state.2.pt").exists())
    for one in commands:
        one.signal(signal.SIGKILL)
    commands = together(2, *options, log=tmp_path / "second", setup=watched_and_slow)
    until(lambda: (out / "state.1.pt").exists() and not (out / "state.2.pt").exists())
    stopped = commands[0].signal(signal.SIGTERM)
    assert stopped == 128 + signal.SIGTERM
    assert "run the same command again to go on" in commands[0].said
    commands[1].signal(signal.SIGKILL)
    kept = sum(read(path) for path in out.glob("state*.pt"))
    assert 0 < kept < 24
    assert Command(*argv, "--batch", "7", "--out", str(out), log=tmp_path / "third", setup=watched).wait() == 0
    assert fid(out) == pytest.approx(fid(whole), abs=1e-6)


def read(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["done"])


def test_states_are_gathered_once_whatever_is_left_behind(tmp_path: Path) -> None:
    """The state holds a part already, but the part was not removed before the end."""
    net, state = Watcher(), tmp_path / "state.pt"
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def seen(numbers: range) -> Evaluation:
        measurement = Measurement()
        measurement.add(net, images[list(numbers)], numbers)  # type: ignore[arg-type]
        return Evaluation(measurement, {"total": 1.0})

    empty = dict.fromkeys(("full", "local", "head", "selection", "tokenizer", "total"), 0.0)
    write_state(state, "{}", seen(range(8)))
    write_state(tmp_path / "state.1.pt", "{}", seen(range(4, 8)))
    write_state(tmp_path / "state.2.pt", "{}", seen(range(8, 12)))
    result = Evaluation(Measurement(), dict(empty))
    gather(state, "{}", result)
    assert (result.done, result.seconds["total"]) == (12, 2.0)
    assert result.seen.reservoir.seen.runs == [(0, 11)]  # what is kept of the numbers does not grow with them
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    assert read_state(state, "{}").done == 12
    write_state(tmp_path / "none.1.pt", "{}", seen(range(10, 12)))
    other = Evaluation(Measurement(), dict(empty))
    other.merge(seen(range(11)))
    with pytest.raises(ValueError, match="share 1 images"):
        gather(tmp_path / "none.pt", "{}", other)


@pytest.mark.parametrize("seed", range(20))
def test_sets_of_numbers_are_sets(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a, b = (set(torch.randint(30, (15,), generator=generator).tolist()) for _ in range(2))
    first, second = NumberSet.of(a), NumberSet.of(b)
    assert len(first) == len(a)
    for ours, theirs in ((first | second, a | b), (first & second, a & b)):
        assert {n for low, high in ours.runs for n in range(low, high + 1)} == theirs
        assert all(low[1] + 1 < high[0] for low, high in zip(ours.runs, ours.runs[1:], strict=False))
    assert first.missing(20) == [n for n in range(20) if n not in a]
