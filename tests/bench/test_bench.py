"""`recap bench` on small models: what it measures, prints and refuses."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recap import Pipeline
from recap.bench import measure as module
from recap.bench.measure import (
    Row,
    ceiling,
    compared,
    measure,
    middle_and_spread,
    random_pipeline,
    time_callable,
    times,
    works_of,
)
from recap.bench.schedules import LISTS, PAPER_MODELS, listed, paper_schedules
from recap.bench.timing import PHASES, generate, seconds_an_image, timed
from recap.cli import bench as command
from recap.cli import main, parser
from recap.core.options import SamplingOptions
from recap.core.presets import PAPER_PLAIN, PAPER_ROWS
from recap.core.schedule import Schedule, cosine
from recap.engine import WARM_RUNS
from recap.evaluation.report import published
from recap.models.registry import SIZES
from tests.pipelines.test_pipeline import pipeline

Capture = pytest.CaptureFixture[str]
KEYS = {
    *("model", "full", "local", "schedule", "batch", "engine", "dtype", "device", "seconds_per_image", "split"),
    *("clocked_seconds", "spread", "setup_seconds", "calls", "ms_full", "ms_local", "tflops", "share_of_ceiling"),
    *("peak_bytes", "against_plain"),
}
QUICK = ("--warmup", "0", "--repeat", "2")
TWO = cosine(16, full=3, local=1)


@pytest.fixture(autouse=True)
def quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a TFLOP/s, without measuring it."""
    monkeypatch.setattr(module, "_ceiling", lambda device, dtype: 0.5)


def folder(family: str, place: Path) -> str:
    return str(pipeline(family).save_pretrained(place / family))


def jobs(*argv: str) -> list[command.Job]:
    args: argparse.Namespace = parser(["bench"]).parse_args(["bench", *argv])
    return command.jobs_of(args)


def printed(capsys: Capture, *argv: str) -> tuple[list[str], dict[str, Any]]:
    """The lines for people, and the object in the last line."""
    assert main(["bench", *argv]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_rows_say_what_was_measured(family: str, capsys: Capture, tmp_path: Path) -> None:
    name, steps = folder(family, tmp_path), ":head_steps=4/3" if family == "mar" else ""
    schedules = [f"8{steps}", f"6+2{steps}"]
    out = tmp_path / "deep" / "rows.json"
    argv = ("--model", name, "--schedule", *schedules, "--batch", "1", "3", "--json", str(out), *QUICK)
    lines, result = printed(capsys, *argv)
    assert json.loads(out.read_text()) == result
    assert set(result) == {"rows", "ceiling", "machine"}
    assert result["ceiling"] == {"float32": 0.5}
    assert result["machine"]["torch"] == torch.__version__
    rows = result["rows"]
    assert [(row["schedule"], row["batch"]) for row in rows] == [(s, b) for b in (1, 3) for s in schedules]
    for row in rows:
        assert set(row) == KEYS
        assert (row["model"], row["engine"], row["dtype"], row["device"]) == (name, "eager", "float32", "cpu")
        local = 2 if "+" in row["schedule"] else 0
        assert (row["full"], row["local"]) == (8 - local, local)
        assert row["calls"] == {"full": 8 - local, "local": local}
        split = row["split"]
        assert list(split) == ["full", "local", "head", "selection", "tokenizer"]
        assert sum(split.values()) - split["tokenizer"] <= row["clocked_seconds"] + 1e-9
        assert min(split["full"], split["head"], split["selection"], split["tokenizer"]) > 0
        assert row["ms_full"] > 0
        assert (split["local"] > 0) == bool(row["ms_local"]) == bool(local)
        assert row["tflops"] == pytest.approx(0.5 * row["share_of_ceiling"])
        assert min(row["spread"], row["setup_seconds"]) >= 0
        assert row["peak_bytes"] is None
    for plain, reused in (rows[:2], rows[2:]):
        assert plain["against_plain"] is None
        assert reused["against_plain"] == pytest.approx(plain["seconds_per_image"] / reused["seconds_per_image"])
        operations = [row["tflops"] * row["seconds_per_image"] for row in (plain, reused)]
        assert operations[0] > operations[1] > 0.5 * operations[0]
    head, *body = [line for line in lines if line.startswith(("schedule", "8", "6+2"))]
    assert lines[0].startswith(name)
    assert len(body) == 4
    assert {len(line) for line in body} == {len(head)}
    assert all(times(row["against_plain"]) in line for row, line in zip(rows, body, strict=True))


def test_models_dtypes_and_own_schedules(capsys: Capture, tmp_path: Path) -> None:
    pipe = pipeline("maskgit")
    pipe.options = pipe.options.override(SamplingOptions(full=4, local=2, warmup=1))
    name = str(pipe.save_pretrained(tmp_path / "maskgit"))
    assert "shrunk" in failure(capsys, "--model", name, "--tiny", "--schedule", "3+1")
    argv = ["--model", "maskgit-large", "--model", "mage-b", "--tiny", "--dtype", "float32", "bfloat16"]
    lines, result = printed(capsys, *argv, "--schedule", "3+1", "--batch", "2", *QUICK)
    rows = [(row["model"], row["dtype"], row["against_plain"]) for row in result["rows"]]
    shown = ("maskgit-large (tiny)", "mage-base (tiny)")
    assert rows == [(model, dtype, None) for model in shown for dtype in ("float32", "bfloat16")]
    assert sum("random weights" in line for line in lines) == 2
    (own,) = jobs("--model", name)
    assert [schedule.text for schedule in own.schedules] == ["4+2:warmup=1", "6"]


def failure(capsys: Capture, *argv: str) -> str:
    """The one line with which the command gives up."""
    assert main(["bench", *argv]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_options_are_those_of_the_model_and_the_arguments() -> None:
    (job,) = jobs("--model", "mar-large", "--schedule", "72+24:warmup=48")
    (row,) = [row for row in PAPER_ROWS if (row.model, row.full) == ("mar-large", 72)]
    assert job.options.override(job.schedules[0]).schedule() == row.schedule()
    (plain,) = jobs("--model", "mar-large", "--schedule", "72+24", "--guidance", "1")
    assert not plain.options.override(plain.schedules[0]).schedule().guided
    (other,) = jobs("--model", "maskgit-large", "--schedule", "8", "--preset", "maskgit")
    assert other.options.preset == "maskgit"


def test_the_papers_list_is_its_tables() -> None:
    found = jobs("--list", "paper")
    assert [job.shown for job in found] == list(PAPER_MODELS)
    for job in found:
        rows = [row for row in PAPER_ROWS if row.model == job.shown]
        schedules = [job.options.override(each).schedule() for each in job.schedules]
        assert [each for each in schedules if each.local] == [row.schedule() for row in rows]
        plain = [each.full for each in schedules if not each.local]
        steps = [row["full"] for row in published(job.shown) if not row["local"] and "system" not in row["table"]]
        assert {*steps, *(row.full + row.local for row in rows)} <= set(plain)
        assert len(plain) == len(set(plain))
    (job,) = jobs("--list", "paper", "--model", "mar-h", "--schedule", "8", "96+32:warmup=64")
    assert (job.shown, len(job.schedules)) == ("mar-huge", 1 + len(paper_schedules("mar-huge")))


@pytest.mark.parametrize("preset", ["maskgit", "mage", "mar-large"])
@pytest.mark.parametrize("name", LISTS)
def test_lists_fit_the_models(name: str, preset: str) -> None:
    schedules = listed(name, preset, 256)
    assert len(schedules) == len(set(schedules)) >= 6
    assert any(each.local for each in schedules)
    for each in schedules:
        SamplingOptions(preset).override(each).schedule()
    few = listed(name, preset, 40)
    assert few == [each for each in schedules if (each.full or 0) + (each.local or 0) <= 40]


def test_a_familys_list_has_the_rows_of_all_its_sizes() -> None:
    mar = [each.text for each in listed("paper", "mar", 256)]
    assert {"72+24:warmup=48", "96+32:warmup=64", *map(str, PAPER_PLAIN["mar"])} <= set(mar)


ERRORS = {
    "--model mar-larg": "did you mean 'mar-large'",
    "--model mar-base --tiny --schedule 12+": "'12+' cannot be read",
    "--model mar-base --tiny --schedule 4+9": "4+9",
    "--model mar-base --tiny --schedule 65": "65",
    "--model mage-base --tiny --guidance 2": "no null class",
    "--model mage-base --tiny --batch 4 0": "--batch is 0",
    "--model mage-base --tiny --warmup -1": "--warmup is -1",
    "--model mage-base --tiny --repeat 0": "--repeat is 0",
    "--model mage-base --tiny --device warp": "warp",
    "--model mage-base --tiny --engine eager graphs": "'graphs'",
    "--model mar-base --list paper": "no rows of mar-base",
    "--model flowers-kl": "tokenizer",
}


@pytest.mark.parametrize("argv", ERRORS)
def test_bad_benchmarks_are_one_line(argv: str, capsys: Capture) -> None:
    assert ERRORS[argv] in failure(capsys, *argv.split())


@pytest.mark.parametrize("argv", [["--dtype", "int8"], ["--engine", "warp"], ["--batch"], ["--list", "usual"]])
def test_unparsable_benchmarks_exit_with_2(argv: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *argv])
    assert stop.value.code == 2


def out_of_memory(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let batches of 3 fail."""

    def begin(pipe: Pipeline, works: Any) -> Tensor:
        if len(works) == 3:
            raise error
        return generate(pipe, works)

    monkeypatch.setattr(module, "generate", begin)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.\nMore."),
        RuntimeError("can't allocate memory"),
    ],
)
def test_too_little_memory_is_a_row(
    error: RuntimeError, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out_of_memory(monkeypatch, error)
    argv = ["--model", folder("maskgit", tmp_path), "--schedule", "4", "3+1", "--batch", "3", "2", *QUICK]
    lines, result = printed(capsys, *argv)
    failed, whole = result["rows"][:2], result["rows"][2:]
    for row in failed:
        assert set(row) == {*KEYS, "error"}
        assert row["error"] == f"out of memory: {str(error).splitlines()[0]}"
        assert (row["seconds_per_image"], row["against_plain"]) == (None, None)
    assert all(row["seconds_per_image"] > 0 for row in whole)
    assert sum("out of memory" in line for line in lines) == 2


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory(monkeypatch, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        measure(pipeline("maskgit"), TWO, 3)


def test_measure_without_a_tokenizer() -> None:
    whole = pipeline("maskgit")
    row = measure(Pipeline(whole.model), TWO, 2, warmup=0, repeat=1)
    assert list(row.split) == ["full", "local", "head", "selection"]
    assert (row.schedule, row.steps, row.engine, row.spread) == ("3+1", TWO, "eager", 0.0)
    with pytest.raises(ValueError, match="repeat is 0"):
        measure(whole, TWO, 2, repeat=0)


@pytest.mark.parametrize(("warmup", "before"), [(0, 2), (1, 2), (3, 3)])
def test_engines_are_warm_before_the_clock_runs(warmup: int, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(pipe: Pipeline, works: Any) -> Tensor:
        order.append("run")
        return generate(pipe, works)

    def clock(call: Any, **options: Any) -> tuple[float, float]:
        order.append("clock")
        return 1.0, 0.0

    monkeypatch.setitem(WARM_RUNS, "eager", 2)
    monkeypatch.setattr(module, "generate", run)
    monkeypatch.setattr(module, "time_callable", clock)
    measure(pipeline("maskgit"), TWO, 1, engine="eager", warmup=warmup)
    assert order == ["run"] * before + ["clock", "run"]


def test_a_batch_is_computed_together_also_on_the_cpu() -> None:
    pipe, sizes = pipeline("maskgit"), []
    full = pipe.model.full
    pipe.model = pipe.model.replace(full=lambda canvas, *rest: (sizes.append(canvas.batch), full(canvas, *rest))[1])
    measure(pipe, TWO, 5, warmup=0, repeat=1)
    assert set(sizes) == {5}


def test_gain_is_over_a_row_that_differs_in_nothing_else() -> None:
    def row(schedule: Schedule, seconds: float | None, engine: str = "eager", batch: int = 1) -> Row:
        return Row("m", schedule, str(schedule), batch, engine, "float32", "cpu", seconds_per_image=seconds)

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
    assert compared([*others, row(cosine(16, full=8), 3.0), row(reused, 2.0)])[-1].against_plain == 1.5
    assert compared([row(cosine(16, full=8), 3.0), row(reused, None)])[-1].against_plain is None
    assert [times(factor) for factor in (1.4, 0.999, None)] == ["1.40x", "1.00x", ""]


def test_any_call_can_be_timed() -> None:
    calls: Counter[str] = Counter()
    seconds, spread = time_callable(lambda: calls.update(["call"]), batch=2, device="cpu", warmup=2, repeat=3)
    assert calls["call"] == 5
    assert seconds > 0
    assert spread >= 0
    assert middle_and_spread([4.0, 8.0, 6.0]) == (6.0, 4 / 6)
    with pytest.raises(ValueError, match="batch is 0"):
        time_callable(lambda: None, batch=0, device="cpu")


def test_ceiling_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = ceiling("cpu", torch.float32)
    assert first > 0
    assert ceiling(torch.device("cpu"), torch.float32) == first


@pytest.mark.parametrize("name", ["mar-base", "mage-base", "maskgit-large"])
def test_random_weights_run_in_float16(name: str) -> None:
    pipes = [random_pipeline(name, dtype=torch.float16, seed=1, shrink=True) for _ in range(2)]
    first, second = (pipe.model.module.state_dict() for pipe in pipes)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    norms = [value for key, value in first.items() if "norm" in key and key.endswith(".weight")]
    assert all(bool((norm == 1).all()) for norm in norms if norm.ndim == 1)
    pipe = pipes[0]
    assert pipe.model.dtype == torch.float16
    assert pipe.tokenizer is not None
    assert next(pipe.tokenizer.parameters()).dtype == torch.float32
    schedule = pipe.schedule("3+1:head_steps=12/6" if name == "mar-base" else "3+1")
    assert schedule.guided == (name == "mar-base")
    images = pipe.decode(generate(pipe, works_of(pipe, schedule, 2)), "pt")
    assert bool(images.isfinite().all())


def test_labels_are_spread_over_the_classes() -> None:
    assert [work.label for work in works_of(pipeline("maskgit"), TWO, 4)] == [0, 1, 2, 3]
    assert max(work.label or 0 for work in works_of(pipeline("maskgit"), TWO, 40)) == 4
    assert {work.label for work in works_of(pipeline("mage"), TWO, 4)} == {None}
    assert SIZES.keys() >= set(PAPER_MODELS)


@pytest.mark.parametrize("family", ["mar", "maskgit"])
def test_clocks_change_nothing_and_count_every_part(family: str) -> None:
    pipe = pipeline(family)
    works = works_of(pipe, cosine(16, full=4, local=2, head_steps=(4, 3)), 2)
    clocked, watch = timed(pipe)
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
