"""The search for a schedule: budgets, times, candidates, and whether it finds what measuring all of them finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from recap import Pipeline, SamplingOptions, load, weights
from recap.cli import main
from recap.core.canvas import Canvas
from recap.tuning import latency as timing
from recap.tuning.latency import Latency, measured
from recap.tuning.search import Budget, Trial, candidates, tune
from tests import tiny

Capture = pytest.CaptureFixture[str]
FULL, LOCAL, ROW = 4.0, 1.0, 0.125  # seconds


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A model with a clock that passes `FULL` a full evaluation, and for local ones `LOCAL` and `ROW` a row."""
    now = [0.0]

    class Clocked(tiny.Spied):
        def local(self, canvas: Canvas, cache, rows: slice, wanted: slice):  # type: ignore[no-untyped-def]
            now[0] += ROW * (rows.stop - rows.start) + LOCAL
            return self.model.local(canvas, cache, rows, wanted)

    def note(kind: str, _: torch.Tensor) -> None:
        now[0] += FULL

    monkeypatch.setattr(timing, "synchronized_time", lambda device: now[0])
    return Pipeline(Clocked(tiny.model("mage"), note), options=SamplingOptions(preset="mage", full=6, local=4))


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.5", 5.0), (" 1 ", 10.0), (".25", 2.5), ("0.4s", 0.4), ("3 s", 3.0), ("2.", 20.0)]
)
def test_budgets_are_shares_or_seconds(text: str, seconds: float) -> None:
    assert Budget.from_text(text).seconds(10.0) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "half", "0", "0s", "-1", "nan", "inf", "50%", "0.5m", "1e3"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        Budget.from_text(text)


@pytest.mark.parametrize("text", ["10", "3", "6+4", "4+8:chain=2,warmup=0", "5+3:warmup=0,order=informed,target=2"])
def test_times_are_predicted_from_a_few_runs(clocked: Pipeline, text: str) -> None:
    schedule, latency = clocked.schedule(text), measured(clocked)
    rows = sum(group.local * group.rows for group in schedule)
    expected = FULL * schedule.full + LOCAL * schedule.local + ROW * rows
    assert latency.seconds(schedule) == pytest.approx(expected, rel=1e-3)


def test_candidates_fill_the_budget(clocked: Pipeline) -> None:
    latency = measured(clocked)
    trials = candidates(clocked, latency, 24.5)
    texts = [trial.options.text for trial in trials]
    assert len(set(texts)) == len(texts)
    assert texts[0] == "6"  # plain decoding is among them
    assert {trial.options.order for trial in trials} == {None, "confidence", "informed"}
    for trial in trials:
        schedule = clocked.schedule(trial.options)
        assert trial.seconds == pytest.approx(latency.seconds(schedule))
        assert trial.seconds <= 24.5
        assert trial.seconds > 24.5 - FULL - 3 * (
            LOCAL + ROW * clocked.model.num_tokens
        )  # one group more is too much
    longer = candidates(clocked, latency, 40.0)
    assert max(trial.options.full or 0 for trial in longer) > max(trial.options.full or 0 for trial in trials)


def test_a_budget_that_cannot_be_met_is_refused(clocked: Pipeline) -> None:
    with pytest.raises(ValueError, match="a single evaluation, takes 4 s: give more time"):
        candidates(clocked, measured(clocked), 3.9)


def test_those_that_lose_most_drop_out_first(clocked: Pipeline) -> None:
    trials = candidates(clocked, measured(clocked), 24.5)
    ranked = tune(clocked, trials, None, 8)
    assert sorted(trial.options.text for trial in ranked) == sorted(trial.options.text for trial in trials)
    drawn = [len(trial.loss) for trial in ranked]
    assert drawn == sorted(drawn, reverse=True)
    assert (drawn[0], drawn[-1]) == (8, 2)
    finalists = [trial.error for trial in ranked if len(trial.loss) == 8]
    assert finalists == sorted(finalists)


@pytest.fixture
def own(home: Path) -> Path:
    """A model with a folder of its own."""
    shutil.copytree(home / "flowers-mage", "mine")
    shutil.copytree(home / "flowers-vq", "flowers-vq")
    return Path("mine")


def test_the_command_writes_a_schedule_that_is_then_the_models_own(own: Path, capsys: Capture) -> None:
    before = (own / "config.json").read_text()
    asked = ["tune", "--model", "mine", "--budget", "0.9", "--num", "4", "--batch", "4"]
    assert main(asked) == 0
    assert (own / "config.json").read_text() == before
    assert main([*asked, "--write"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "6 plain sub-steps take" in lines[0]
    found = lines[-2].removeprefix("-> ")
    pipe = load("mine")
    assert pipe.schedule() == load("flowers-mage").schedule(found)
    assert {**json.loads(before), "sampling": pipe.options.json()} == json.loads((own / "config.json").read_text())
    assert pipe(num_images=1, seed=0, output_type="latent").tokens.shape == (1, 16)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--budget", "soon"], "budget 'soon' is no time"),
        (["--budget", "0.000001"], "give more time"),
        (["--budget", "0.5", "--write"], "has no folder of its own to write to"),
        (["--budget", "0.5", "--num", "0"], "at least 1"),
        (["--budget", "0.9", "--schedule", ":temperature=0"], "temperature of 0"),
    ],
)
def test_what_cannot_be_tuned_is_refused(home: Path, capsys: Capture, argv: list[str], words: str) -> None:
    assert main(["tune", "--model", "flowers-mage", *argv]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_it_finds_what_measuring_everything_finds() -> None:
    """On a model that comes with the package, at three budgets; other images judge than those that decided."""
    pipe = load("flowers-mage")
    assert weights.find("flowers-mage") is not None
    steps = {False: torch.tensor([1.0, 0.0, 0.0]), True: torch.tensor([0.2, 0.002, 0.0])}
    latency = Latency(steps, 0.0)
    judged = []
    for budget in (1.7, 2.2, 3.0):
        trials = candidates(pipe, latency, budget)[::2]  # every other one, for time
        found = tune(pipe, trials, None, 4)[0]
        every = [
            Trial(trial.options, trial.seconds, usual=found.usual).drawing(pipe, works)
            for trial in trials
            for works in [pipe.works(None, 4, trial.options, seed=1)]
        ]
        best, worst = (pick(every, key=lambda trial: trial.error) for pick in (min, max))
        winner = next(trial for trial in every if trial.options == found.options)
        more, error = winner.more_than(best)
        assert winner is best or more < 2 * error
        judged.append(worst.more_than(best))
    assert any(more > 2 * error for more, error in judged)  # it could have failed


def test_missing_choice_is_an_error_and_more_of_it_is_no_merit() -> None:
    loss, options = torch.tensor([1.0, 3.0]), SamplingOptions(full=4)
    none, less, more = (
        Trial(options, 1.0, loss, torch.tensor(choice), usual=5.0).error
        for choice in ([5.0, 5.0], [1.0, 3.0], [9.0, 11.0])
    )
    assert none == more == 2.0 < less
