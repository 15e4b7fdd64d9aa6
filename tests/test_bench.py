"""`recap bench` and `recap profile` on small models: what they measure, print and refuse."""

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from recap import Pipeline, bench
from recap.bench import (
    Row,
    ceiling,
    compared,
    measure,
    paper_settings,
    random_pipeline,
    request,
    time_callable,
)
from recap.cli import bench as command
from recap.cli import main, parser
from recap.core.costs import run_cost
from recap.core.presets import PAPER_ROWS
from recap.core.schedule import Schedule, cosine
from recap.engine import WARM_RUNS
from recap.evaluation.settings import Setting
from recap.evaluation.sweep import PLAIN
from recap.models.zoo import SIZES, tiny
from recap.timing import PHASES, timed
from tests.test_cli import PAPER, Capture, failure
from tests.test_pipeline import pipeline

KEYS = {
    *("model", "full", "local", "setting", "batch", "engine", "dtype", "device", "seconds_per_image", "split"),
    *("clocked_seconds", "spread", "setup_seconds", "calls", "ms_full", "ms_local", "tflops", "share_of_ceiling"),
    *("peak_bytes", "against_plain"),
}
QUICK = ("--warmup", "0", "--repeat", "2")


@pytest.fixture(autouse=True)
def quick_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a TFLOP/s, without measuring it."""
    monkeypatch.setattr(bench, "_ceiling", lambda device, dtype: 0.5)


def folder(family: str, place: Path) -> str:
    return str(pipeline(family).save_pretrained(place / family))


def arguments(*argv: str) -> argparse.Namespace:
    return parser().parse_args(["bench", *argv])


def printed(capsys: Capture, *argv: str) -> tuple[list[str], dict[str, Any]]:
    """The lines for people, and the object in the last line."""
    assert main(["bench", *argv]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    return lines, json.loads(last)


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_rows_say_what_was_measured(family: str, capsys: Capture, tmp_path: Path) -> None:
    name, steps = folder(family, tmp_path), ":head=4/3" if family == "mar" else ""
    settings = [f"8{steps}", f"6+2{steps}"]
    lines, result = printed(capsys, "--model", name, "--settings", *settings, "--batch", "1", "3", *QUICK)
    assert set(result) == {"rows", "ceiling", "machine"}
    assert result["ceiling"] == {"float32": 0.5}
    assert result["machine"]["torch"] == torch.__version__
    rows = result["rows"]
    assert [(row["setting"], row["batch"]) for row in rows] == [(s, b) for b in (1, 3) for s in settings]
    sampling = Pipeline.from_pretrained(name).sampling
    for row in rows:
        assert set(row) == KEYS
        assert (row["model"], row["engine"], row["dtype"], row["device"]) == (name, "eager", "float32", "cpu")
        schedule = Setting.parse(row["setting"]).schedule(sampling, 16)
        assert row["calls"] == {"full": schedule.full, "local": schedule.local}
        assert (row["full"], row["local"]) == (schedule.full, schedule.local)
        split, batch = row["split"], row["batch"]
        assert list(split) == ["full", "local", "head", "selection", "tokenizer"]
        assert sum(split.values()) - split["tokenizer"] <= row["clocked_seconds"] + 1e-9
        assert min(split["full"], split["head"], split["selection"], split["tokenizer"]) > 0
        assert row["ms_full"] == pytest.approx(1e3 * split["full"] * batch / schedule.full)
        if schedule.local:
            assert row["ms_local"] == pytest.approx(1e3 * split["local"] * batch / schedule.local)
        else:
            assert (split["local"], row["ms_local"]) == (0.0, None)
        cost = run_cost(pipeline(family).model.config, schedule).total
        assert row["tflops"] == pytest.approx(cost / row["seconds_per_image"] / 1e12)
        assert row["share_of_ceiling"] == pytest.approx(row["tflops"] / 0.5)
        assert row["spread"] >= 0
        assert row["setup_seconds"] >= 0
        assert row["peak_bytes"] is None
    for plain, reused in (rows[:2], rows[2:]):
        assert plain["against_plain"] is None
        assert reused["against_plain"] == pytest.approx(plain["seconds_per_image"] / reused["seconds_per_image"])
    head, *body = [line for line in lines if line.startswith(("setting", "8", "6+2"))]
    assert lines[0].startswith(name)
    assert len(body) == 4
    assert {len(line) for line in body} == {len(head)}
    assert all(f"{row['against_plain']:.2f}x" in line for row, line in zip(rows, body, strict=True) if row["local"])


def test_json_file_is_the_last_line(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "rows.json"
    argv = ["--model", folder("maskgit", tmp_path), "--settings", "4", "--batch", "1", "--json", str(out), *QUICK]
    _, result = printed(capsys, *argv)
    assert json.loads(out.read_text()) == result


def test_models_dtypes_and_own_settings(capsys: Capture, tmp_path: Path) -> None:
    name = folder("maskgit", tmp_path)
    argv = ["--model", name, "--model", "mage-b", "--tiny", "--settings", "3+1", "--batch", "2"]
    assert "--tiny" in failure(capsys, "bench", *argv)
    argv = ["--model", "maskgit-large", "--model", "mage-b", "--tiny", "--dtype", "float32", "bfloat16"]
    lines, result = printed(capsys, *argv, "--settings", "3+1", "--batch", "2", *QUICK)
    shown = ("maskgit-large (tiny)", "mage-base (tiny)")
    rows = [(row["model"], row["dtype"], row["against_plain"]) for row in result["rows"]]
    assert rows == [(model, dtype, None) for model in shown for dtype in ("float32", "bfloat16")]
    assert [line.split(", random weights")[0] for line in lines if "random weights" in line] == list(shown)
    assert set(result["ceiling"]) == {"float32", "bfloat16"}
    (job,) = command.jobs_of(arguments("--model", "mar-l"))
    assert [str(setting) for setting in job.settings] == ["48+16", "64"]


def test_published_sizes_are_guided_as_published() -> None:
    (job,) = command.jobs_of(arguments("--model", "mar-large", "--settings", "72+24:u=48"))
    (row,) = [row for row in PAPER_ROWS if (row.model, row.full) == ("mar-large", 72)]
    assert job.schedule(job.settings[0]) == row.schedule()
    (plain,) = command.jobs_of(arguments("--model", "mar-large", "--settings", "72+24", "--guidance", "1"))
    assert not plain.schedule(plain.settings[0]).guided


def test_preset_is_the_papers_tables() -> None:
    jobs = command.jobs_of(arguments("--preset", "paper"))
    assert [job.shown for job in jobs] == list(PAPER)
    for job in jobs:
        reused = [setting for setting in job.settings if setting.local]
        assert [(setting.full, setting.local) for setting in reused] == PAPER[job.shown]
        own = [row.schedule() for row in PAPER_ROWS if row.model == job.shown]
        assert [job.schedule(setting) for setting in reused] == own
        plain = [setting.full for setting in job.settings if not setting.local]
        assert set(plain) == {*PLAIN[job.shown.split("-")[0]], *(full + local for full, local in PAPER[job.shown])}
        assert len(plain) == len(set(plain))
        assert job.config == SIZES[job.shown]
    (job,) = command.jobs_of(arguments("--preset", "paper", "--model", "mar-h", "--settings", "8", "96+32:u=64"))
    assert job.shown == "mar-huge"
    assert len(job.settings) == 1 + len(paper_settings("mar-huge"))


BENCH_ERRORS = {
    "--model mar-larg": "did you mean 'mar-large'",
    "--model mar-base --tiny --settings 12+": "'12+' cannot be read",
    "--model mar-base --tiny --settings 4+9": "4+9",
    "--model mar-base --tiny --settings 65": "no room in 64 tokens",
    "--model mage-base --tiny --guidance 2": "no null class",
    "--model mage-base --tiny --batch 4 0": "--batch is 0",
    "--model mage-base --tiny --warmup -1": "--warmup is -1",
    "--model mage-base --tiny --repeat 0": "--repeat is 0",
    "--model mage-base --tiny --device warp": "warp",
    "--model mage-base --tiny --engine eager graphs": "'graphs'",
    "--model mar-base --preset paper": "no rows of mar-base",
    "--model flowers-kl": "tokenizer",
}
PROFILE_ERRORS = {
    "--model mage-base --tiny --steps 0": "--steps is 0",
    "--model mage-base --tiny --batch 0": "--batch is 0",
    "--model mage-base --tiny --out trace.txt": ".json",
    "--model mage-base --tiny --setting 4+x": "'4+x' cannot be read",
    "--model mage-base --tiny --engine graphs": "'graphs'",
    "--model mage-bas": "did you mean 'mage-base'",
}


@pytest.mark.parametrize("argv", BENCH_ERRORS)
def test_bad_benchmarks_are_one_line(argv: str, capsys: Capture) -> None:
    assert BENCH_ERRORS[argv] in failure(capsys, "bench", *argv.split())


@pytest.mark.parametrize("argv", PROFILE_ERRORS)
def test_bad_profiles_are_one_line(argv: str, capsys: Capture) -> None:
    assert PROFILE_ERRORS[argv] in failure(capsys, "profile", *argv.split())


@pytest.mark.parametrize("argv", [["bench", "--dtype", "int8"], ["bench", "--engine", "warp"], ["bench", "--batch"]])
def test_unparsable_benchmarks_exit_with_2(argv: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2


def out_of_memory(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let batches of 3 fail."""
    sound = Pipeline.__call__

    def call(pipe: Pipeline, labels: Any = None, **options: Any) -> Any:
        if len(labels) == 3:
            raise error
        return sound(pipe, labels, **options)

    monkeypatch.setattr(Pipeline, "__call__", call)


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
    argv = ["--model", folder("maskgit", tmp_path), "--settings", "4", "3+1", "--batch", "3", "2", *QUICK]
    lines, result = printed(capsys, *argv)
    failed, sound = result["rows"][:2], result["rows"][2:]
    for row in failed:
        assert set(row) == {*KEYS, "error"}
        assert row["error"] == f"out of memory: {str(error).splitlines()[0]}"
        assert (row["seconds_per_image"], row["against_plain"]) == (None, None)
    assert all(row["seconds_per_image"] > 0 for row in sound)
    assert sum("out of memory" in line for line in lines) == 2


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_memory(monkeypatch, RuntimeError("something else"))
    pipe = pipeline("maskgit")
    pipe.progress = True
    with pytest.raises(RuntimeError, match="something else"):
        measure(pipe, cosine(16, full=4), 3)
    assert pipe.progress


def test_measure_without_a_tokenizer() -> None:
    whole = pipeline("maskgit")
    row = measure(Pipeline(whole.model), cosine(16, full=3, local=1), 2, warmup=0, repeat=1)
    assert list(row.split) == ["full", "local", "head", "selection"]
    assert (row.setting, row.engine, row.spread) == ("3+1", "eager", 0.0)
    with pytest.raises(ValueError, match="repeat is 0"):
        measure(whole, cosine(16, full=3), 2, repeat=0)


def test_engines_settle_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, order = pipeline("maskgit"), []
    sound = Pipeline.__call__

    def call(pipe: Pipeline, *args: Any, **options: Any) -> Any:
        order.append("run")
        return sound(pipe, *args, **options)

    monkeypatch.setattr(Pipeline, "__call__", call)

    def clock(call: Any, **options: Any) -> tuple[float, float]:
        order.append("clock")
        return 1.0, 0.0

    monkeypatch.setitem(WARM_RUNS, "eager", 2)
    monkeypatch.setattr(bench, "time_callable", clock)
    for warmup, runs in ((1, 2), (3, 3)):
        order.clear()
        measure(pipe, cosine(16, full=3), 1, engine="eager", warmup=warmup)
        assert order == ["run"] * runs + ["clock", "run"]


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


def test_any_call_can_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    clock = iter([0.0, 4.0, 10.0, 18.0, 20.0, 26.0])  # 4, 8 and 6 seconds
    monkeypatch.setattr(bench, "now", lambda device: next(clock))
    seconds, spread = time_callable(lambda: calls.update(["call"]), batch=2, device="cpu", warmup=2, repeat=3)
    assert (seconds, spread) == (3.0, 4 / 6)
    assert calls["call"] == 5
    with pytest.raises(ValueError, match="batch is 0"):
        time_callable(lambda: None, batch=0, device="cpu")


def test_ceiling_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = ceiling("cpu", torch.float32)
    assert first > 0
    assert ceiling(torch.device("cpu"), torch.float32) == first


@pytest.mark.parametrize("name", ["mar-base", "mage-base", "maskgit-large"])
def test_random_weights_run_in_float16(name: str) -> None:
    pipes = [random_pipeline(tiny(SIZES[name]), dtype=torch.float16, seed=1, small=True) for _ in range(2)]
    first, second = (pipe.model.module.state_dict() for pipe in pipes)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    norms = [value for key, value in first.items() if "norm" in key and key.endswith(".weight")]
    assert all(bool((norm == 1).all()) for norm in norms if norm.ndim == 1)
    pipe = pipes[0]
    pipe.progress = False
    assert pipe.model.dtype == torch.float16
    assert pipe.tokenizer is not None
    assert next(pipe.tokenizer.parameters()).dtype == torch.float32
    setting = Setting(3, 1, head_steps=(12, 6) if name == "mar-base" else None)
    schedule = setting.schedule(pipe.sampling, 64)
    assert schedule.guided == (name == "mar-base")
    images = pipe(**request(pipe, 2), schedule=schedule, seed=0, output_type="pt").images
    assert bool(images.isfinite().all())


def test_requests_spread_over_the_classes() -> None:
    assert request(pipeline("maskgit"), 4) == {"labels": [0, 1, 2, 3]}
    assert max(request(pipeline("maskgit"), 40)["labels"]) == 4
    assert request(pipeline("mage"), 4) == {"num_images": 4}


@pytest.mark.parametrize("family", ["mar", "maskgit"])
def test_selection_has_a_clock_of_its_own(family: str) -> None:
    pipe = pipeline(family)
    watched, watch = timed(pipe)
    schedule = cosine(16, full=4, local=2, head_steps=(4, 3))
    with watch.measure("total"):
        drawn = watched(**request(pipe, 2), schedule=schedule, seed=0, output_type="latent").tokens
    assert torch.equal(drawn, pipe(**request(pipe, 2), schedule=schedule, seed=0, output_type="latent").tokens)
    parts = {phase: watch.seconds[phase] for phase in PHASES if phase != "total"}
    assert parts["selection"] > 0
    assert sum(parts.values()) <= watch.seconds["total"] + 1e-9


@pytest.mark.parametrize("name", ["trace.json", "deep/trace.json.gz"])
def test_profile_writes_a_trace(name: str, capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / name
    argv = ["profile", "--model", folder("maskgit", tmp_path), "--setting", "4+2:u=0", "--batch", "2", "--rows", "99"]
    assert main([*argv, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "aten::addmm" in text
    assert text.splitlines()[-1].endswith(f"6 of 6 sub-steps of 4+2, batch 2 -> {out}")
    assert spans(out) == {"full": 4, "local": 2, "head": 4 + 6, "selection": 4}  # ranked, then drawn again


def test_profile_of_the_first_steps(capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    argv = ["profile", "--model", folder("maskgit", tmp_path), "--setting", "4+2:u=0", "--batch", "1"]
    assert main([*argv, "--steps", "3", "--out", str(out)]) == 0
    assert "3 of 6 sub-steps" in capsys.readouterr().out
    assert spans(out) == {"full": 2, "local": 1, "head": 2 + 3, "selection": 2}


def spans(path: Path) -> Counter[str]:
    """How often each part stands in a trace."""
    content = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    events = [event for event in content["traceEvents"] if event.get("cat") == "user_annotation"]
    assert all(event["dur"] >= 0 for event in events)
    return Counter(event["name"] for event in events if event["name"] in PHASES)
