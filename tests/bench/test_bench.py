"""`recap bench` on small models: what it measures, prints and refuses."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recap import Pipeline
from recap.bench import measure as module
from recap.bench import timing
from recap.bench.measure import BenchRow, ceiling, compared, in_turn, measure, times, works_of
from recap.bench.pairs import Speedup
from recap.bench.schedules import LISTS, PAPER_MODELS, listed
from recap.bench.timing import PHASES, TimedPipeline, generate, seconds_an_image, time_callable
from recap.cli import bench as command
from recap.cli import main, parser
from recap.core.options import SamplingOptions
from recap.core.presets import PAPER_PLAIN, PAPER_ROWS
from recap.core.schedule import Schedule, cosine
from recap.engine import WARM_RUNS, default_engine
from recap.evaluation.report import published
from recap.models.registry import SIZES
from tests import tiny
from tests.pipelines.test_pipeline import pipeline

Capture = pytest.CaptureFixture[str]
KEYS = {
    *("model", "full", "local", "schedule", "batch", "engine", "dtype", "device", "seconds_per_image", "split"),
    *("clocked_seconds", "spread", "setup_seconds", "calls", "ms_full", "ms_local", "tflops", "share_of_ceiling"),
    *("peak_bytes", "against_plain", "runs"),
}
QUICK = ("--warmup", "0", "--repeat", "2")
TWO = cosine(16, full=3, local=1)
CEILING = 0.5  # TFLOP/s, without measuring it


@pytest.fixture(autouse=True)
def quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (module, command):
        monkeypatch.setattr(place, "ceiling", lambda device, dtype: CEILING)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for place in (module, timing):
            monkeypatch.setattr(place, "synchronized_time", lambda device: self.now)

    def pipeline(self, family: str = "maskgit") -> Pipeline:
        """A model whose full evaluations take 4 seconds, and local ones 1."""
        return Pipeline(tiny.Spied(tiny.model(family), lambda kind, _: self.wait(4.0 if kind == "full" else 1.0)))

    def wait(self, seconds: float) -> None:
        self.now += seconds


def folder(family: str, place: Path) -> str:
    return str(pipeline(family).save_pretrained(place / family))


def jobs(*argv: str) -> list[tuple[SamplingOptions, list[SamplingOptions]]]:
    args: argparse.Namespace = parser(["bench"]).parse_args(["bench", *argv])
    return [command.job_of(name, args) for name in args.model or PAPER_MODELS]


def printed(capsys: Capture, *argv: str) -> tuple[list[str], dict[str, Any]]:
    """The lines for people, and the object in the last line."""
    assert main(["bench", *argv]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


def failure(capsys: Capture, *argv: str) -> str:
    """The one line with which the command gives up."""
    assert main(["bench", *argv]) == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_rows_say_what_was_measured(family: str, capsys: Capture, tmp_path: Path) -> None:
    name, steps = folder(family, tmp_path), ":head_steps=4/3" if family == "mar" else ""
    schedules = [f"8{steps}", f"6+2{steps}"]
    out = tmp_path / "deep" / "rows.json"
    argv = ("--model", name, "--schedule", *schedules, "--batch", "1", "3", "--json", str(out), *QUICK)
    lines, result = printed(capsys, *argv)
    assert json.loads(out.read_text()) == result
    assert set(result) == {"rows", "ceiling", "machine"}
    assert result["ceiling"] == {"float32": CEILING}
    assert result["machine"]["torch"] == torch.__version__
    rows = result["rows"]
    assert [(row["schedule"], row["batch"]) for row in rows] == [(s, b) for b in (1, 3) for s in schedules]
    for row in rows:
        assert set(row) == KEYS
        assert (row["model"], row["engine"], row["dtype"], row["device"]) == (
            name,
            default_engine("cpu"),
            "float32",
            "cpu",
        )
        local = 2 if "+" in row["schedule"] else 0
        assert (row["full"], row["local"]) == (8 - local, local)
        assert row["calls"] == {"full": 8 - local, "local": local}
        split = row["split"]
        assert list(split) == ["full", "local", "head", "selection", "tokenizer"]
        assert sum(split.values()) - split["tokenizer"] <= row["clocked_seconds"] + 1e-9
        assert min(split["full"], split["head"], split["selection"], split["tokenizer"]) > 0
        assert (split["local"] > 0) == bool(row["ms_local"]) == bool(local)
        assert row["peak_bytes"] is None
    for plain, reused in (rows[:2], rows[2:]):
        ratios = tuple(a / b for a, b in zip(plain["runs"], reused["runs"], strict=True))
        assert (plain["against_plain"], reused["against_plain"]) == (None, Speedup(ratios).median)
        assert len(ratios) == 2
    head, *body = [line for line in lines if line.startswith(("schedule", "8", "6+2"))]
    assert lines[0].startswith(name)
    assert len(body) == 4
    assert {len(line) for line in body} == {len(head)}
    assert all(times(row["against_plain"]) in line for row, line in zip(rows, body, strict=True))


def test_figures_are_those_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Clock(monkeypatch).pipeline()
    plain, reused = measure(pipe, cosine(16, full=8), 2), measure(pipe, cosine(16, full=6, local=2), 2)
    assert (plain.seconds_per_image, plain.ms_full, plain.ms_local) == (16.0, 4000.0, None)
    assert (reused.seconds_per_image, reused.ms_full, reused.ms_local) == (13.0, 4000.0, 1000.0)
    assert (reused.clocked_seconds, reused.setup_seconds, reused.spread) == (13.0, 26.0, 0.0)
    assert reused.split == {"full": 12.0, "local": 1.0, "head": 0.0, "selection": 0.0}  # there is no tokenizer
    assert reused.tflops == CEILING * (reused.share_of_ceiling or 0) > 0
    assert compared([plain, reused])[1].against_plain == pytest.approx(1.2307692)


def test_models_dtypes_and_own_schedules(capsys: Capture, tmp_path: Path) -> None:
    pipe = pipeline("maskgit")
    pipe.options = pipe.options.override(SamplingOptions(full=4, local=2, warmup=1))
    name = str(pipe.save_pretrained(tmp_path / "maskgit"))
    assert "shrunk" in failure(capsys, "--model", name, "--tiny", "--schedule", "3+1")
    argv = ["--model", "maskgit-large", "--model", "mage-b", "--tiny", "--dtype", "float32", "bfloat16"]
    _, result = printed(capsys, *argv, "--schedule", "3+1", "--batch", "2", *QUICK)
    rows = [(row["model"], row["dtype"], row["against_plain"]) for row in result["rows"]]
    shown = ("maskgit-large (tiny), random weights", "mage-base (tiny), random weights")
    assert rows == [(model, dtype, None) for model in shown for dtype in ("float32", "bfloat16")]
    ((_, schedules),) = jobs("--model", name)
    assert [schedule.text for schedule in schedules] == ["4+2:warmup=1", "6"]


def test_options_are_those_of_the_model_and_the_arguments() -> None:
    ((own, (schedule,)),) = jobs("--model", "mar-large", "--schedule", "72+24:warmup=48")
    (row,) = [row for row in PAPER_ROWS if (row.model, row.full) == ("mar-large", 72)]
    assert own.override(schedule).schedule() == row.schedule()
    ((own, (schedule,)),) = jobs("--model", "mar-large", "--schedule", "72+24", "--guidance", "1")
    assert not own.override(schedule).schedule().guided
    ((other, _),) = jobs("--model", "maskgit-large", "--schedule", "8", "--preset", "maskgit")
    assert other.preset == "maskgit"


def test_the_papers_list_is_its_tables() -> None:
    for name, (own, asked) in zip(PAPER_MODELS, jobs("--list", "paper"), strict=True):
        rows = [row for row in PAPER_ROWS if row.model == name]
        schedules = [own.override(each).schedule() for each in asked]
        assert [each for each in schedules if each.local] == [row.schedule() for row in rows]
        plain = [each.full for each in schedules if not each.local]
        steps = [row["full"] for row in published(name) if not row["local"] and "system" not in row["table"]]
        assert {*steps, *(row.full + row.local for row in rows)} <= set(plain)
        assert len(plain) == len(set(plain))
    ((_, asked),) = jobs("--list", "paper", "--model", "mar-h", "--schedule", "8", "96+32:warmup=64")
    assert len(asked) == 1 + len(listed("paper", "mar-huge", "mar-huge", 256))
    assert SIZES.keys() >= set(PAPER_MODELS)
    with pytest.raises(ValueError, match="no rows of sentences"):
        listed("paper", "sentences", "", 256)


@pytest.mark.parametrize("preset", ["maskgit", "mage", "mar-large"])
@pytest.mark.parametrize("name", LISTS)
def test_lists_fit_the_models(name: str, preset: str) -> None:
    schedules = listed(name, "m", preset, 256)
    assert len(schedules) == len(set(schedules)) >= 6
    assert any(each.local for each in schedules)
    for each in schedules:
        SamplingOptions(preset).override(each).schedule()
    few = listed(name, "m", preset, 40)
    assert few == [each for each in schedules if (each.full or 0) + (each.local or 0) <= 40]
    mar = {each.text for each in listed("paper", "m", "mar", 256)}  # a family's list has the rows of all its sizes
    assert {"72+24:warmup=48", "96+32:warmup=64", *map(str, PAPER_PLAIN["mar"])} <= mar


ERRORS = {
    "--model mar-larg": "did you mean 'mar-large'",
    "--model mar-base --tiny --schedule 12+": "'12+' cannot be read",
    "--model mar-base --tiny --schedule 4+9": "4+9",
    "--model mar-base --tiny --schedule 65": "65",
    "--model mage-base --tiny --guidance 2": "no null class",
    "--model mage-base --tiny --warmup -1": "--warmup is -1",
    "--model mage-base --tiny --repeat 0": "--repeat is 0",
    "--model mage-base --tiny --device warp": "warp",
    "--model mage-base --tiny --engine eager graphs": "'graphs'",
    "--model flowers-kl": "tokenizer",
}


@pytest.mark.parametrize("argv", ERRORS)
def test_bad_benchmarks_are_one_line(argv: str, capsys: Capture) -> None:
    assert ERRORS[argv] in failure(capsys, *argv.split())


def test_too_little_memory_is_a_row_and_other_errors_are_raised(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[RuntimeError] = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.\nMore.")]

    def begin(pipe: Pipeline, works: Any) -> Tensor:
        if len(works) == 3:
            raise errors[-1]
        return generate(pipe, works)

    monkeypatch.setattr(module, "generate", begin)
    argv = ["--model", folder("maskgit", tmp_path), "--schedule", "4", "3+1", "--batch", "3", "2", *QUICK]
    lines, result = printed(capsys, *argv)
    failed, whole = result["rows"][:2], result["rows"][2:]
    for row in failed:
        assert set(row) == {*KEYS, "error"}
        assert row["error"] == "out of memory: CUDA out of memory. Tried to allocate a lot."
        assert (row["seconds_per_image"], row["against_plain"]) == (None, None)
    assert all(row["seconds_per_image"] > 0 for row in whole)
    assert sum("out of memory" in line for line in lines) == 2
    errors.append(RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        measure(pipeline("maskgit"), TWO, 3)


@pytest.mark.parametrize(("warmup", "runs"), [(0, 2), (1, 2), (3, 3)])
def test_engines_are_warm_before_the_clock_runs(warmup: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WARM_RUNS, "eager", 2)
    row = measure(Clock(monkeypatch).pipeline(), TWO, 1, warmup=warmup, repeat=1)
    assert (row.setup_seconds, row.seconds_per_image) == (runs * 13.0, 13.0)


def test_a_batch_is_computed_together_also_on_the_cpu() -> None:
    sizes: set[int] = set()
    pipe = Pipeline(tiny.Spied(tiny.model("mage"), lambda _, features: sizes.add(len(features))))
    measure(pipe, TWO, 5, warmup=0, repeat=1)
    assert sizes == {5}


def test_gain_is_over_a_row_that_differs_in_nothing_else() -> None:
    def row(schedule: Schedule, seconds: float | None, engine: str = "eager", batch: int = 1) -> BenchRow:
        runs = (seconds, seconds * 1.1) if seconds else ()
        return BenchRow("m", schedule, str(schedule), batch, engine, "float32", "cpu", runs)

    reused = cosine(16, full=6, local=2)
    others = [
        row(cosine(16, full=8), 8.0, engine="graphs"),
        row(cosine(16, full=8), 7.0, batch=2),
        row(cosine(16, full=7), 6.0),
        row(cosine(16, full=8, guidance=2.0), 5.0),
        row(cosine(16, full=8, head_steps=(50, 50)), 4.0),
        row(cosine(16, full=8), None),
    ]
    assert compared([*others, row(reused, 2.0)])[-1].against_plain is None
    assert compared([*others, row(cosine(16, full=8), 3.0), row(reused, 2.0)])[-1].against_plain == pytest.approx(1.5)
    assert compared([row(cosine(16, full=8), 3.0), row(reused, None)])[-1].against_plain is None
    busy = replace(row(reused, 2.0), runs=(2.0, 3.4))  # once quicker than plain decoding, once slower
    assert compared([row(cosine(16, full=8), 3.0), busy])[-1].against_plain is None
    assert [times(factor) for factor in (1.4, 0.999, None)] == ["1.40x", "1.00x", ""]


def test_rows_of_a_table_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes slower and quicker again is so for all of them."""
    clock, seconds = Clock(monkeypatch), iter([4.0, 2.0, 10.0, 5.0, 8.0, 4.0])
    pipe, schedules = clock.pipeline(), (cosine(16, full=8), cosine(16, full=6, local=2))
    rows = [measure(pipe, schedule, 1, repeat=1) for schedule in schedules]
    failed = replace(rows[1], runs=(), error="out of memory")
    monkeypatch.setattr(module, "generate", lambda pipe, works: clock.wait(next(seconds)))
    plain, none, reused = in_turn(pipe, [rows[0], failed, rows[1]], repeat=3)
    assert (plain.runs, none.runs, reused.runs) == ((4.0, 10.0, 8.0), (), (2.0, 5.0, 4.0))
    assert (plain.seconds_per_image, plain.spread, reused.seconds_per_image) == (8.0, 0.75, 4.0)
    assert compared([plain, none, reused])[-1].against_plain == 2.0


def test_any_call_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds = Clock(monkeypatch), iter([99.0, 99.0, 4.0, 10.0, 8.0])  # two that do not count
    assert time_callable(lambda: clock.wait(next(seconds)), batch=2, device="cpu", warmup=2) == [2.0, 5.0, 4.0]
    with pytest.raises(ValueError, match="batch is 0"):
        time_callable(lambda: None, batch=0, device="cpu")


def test_ceiling_is_measured_once() -> None:
    first = ceiling(torch.device("cpu"), torch.float32)
    assert first > 0
    assert ceiling(torch.device("cpu"), torch.float32) == first


@pytest.mark.parametrize("family", ["mar", "maskgit"])
def test_clocks_change_nothing_and_count_every_part(family: str) -> None:
    pipe = pipeline(family)
    works = works_of(pipe, cosine(16, full=4, local=2, head_steps=(4, 3)), 2)
    clocked = TimedPipeline(pipe)
    watch = clocked.watch
    with watch.measure("total"):
        tokens = generate(clocked, works)
        pixels = clocked.decode(tokens, "pt")
    assert torch.equal(tokens, generate(pipe, works))
    assert torch.equal(pixels, pipe.decode(tokens, "pt"))
    parts = {phase: watch.seconds[phase] for phase in PHASES if phase != "total"}
    assert min(parts.values()) > 0
    assert sum(parts.values()) <= watch.seconds["total"] + 1e-9
    assert (watch.calls["full"], watch.calls["local"], watch.calls["tokenizer"]) == (4, 2, 1)
    seconds = seconds_an_image(pipe, works, batches=1)
    assert set(seconds) == set(PHASES)
    assert min(seconds.values()) > 0
