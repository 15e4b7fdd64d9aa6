"""Readers of what comes from outside, under inputs changed by chance; `benchmarks/fuzz.py` does so for longer."""

import importlib.util
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fuzz import Judge, changed
from benchmarks.targets import TARGETS, config_file, seeds_of_configs, sweep_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recap.cli import main
from recap.core.options import SamplingOptions
from recap.pipelines.inputs import find_classes
from recap.planning.memory import size_of

COUNTS = {"commands": 25, "labels": 1000, "schedules": 400}
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    target, rng, folder = TARGETS[name], random.Random(7), tmp_path / "work"
    folder.mkdir()
    seeds = target.seeds(folder)
    judge = Judge(target, folder, tmp_path / "found")
    for seed in seeds:
        judge(seed)
    for _ in range(COUNTS.get(name, 120)):
        judge(changed(rng.choice(seeds), rng, target.words, seeds))
    assert judge.found == {}
    assert judge.count > judge.refused  # some are fine, or nothing was tested


def refusal(call: Callable[..., Any], *given: Any) -> str | None:
    """What a reader says of an input that it does not take, and None of one that it does."""
    try:
        call(*given)
    except ValueError as error:
        return str(error)
    return None


def replaced(content: Any, path: list[str], value: Any) -> Any:
    return {**content, path[0]: replaced(content[path[0]], path[1:], value)} if path else value


@FEW
@given(st.data(), JSON)
def test_configurations_with_anything_in_them(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    content = json.loads(data.draw(st.sampled_from(seeds_of_configs(tmp_path))))
    path = data.draw(st.sampled_from([[key] for key in content] + [["config", key] for key in content["config"]]))
    said = refusal(config_file, json.dumps(replaced(content, path, value)).encode(), tmp_path)
    assert said is None or str(tmp_path) in said  # which file it is


@FEW
@given(st.data(), JSON)
def test_results_with_anything_in_them(tmp_path: Path, data: st.DataObject, value: Any) -> None:
    content = json.loads(TARGETS["sweeps"].seeds(tmp_path)[0])
    point = content["points"][0]
    key = data.draw(st.sampled_from([*content, *point]))
    odd = {"points": [point | {key: value}]} if key in point else {key: value}
    assert refusal(sweep_file, json.dumps(content | odd).encode(), tmp_path) != ""


@given(st.text(max_size=40))
def test_texts_mean_something_or_are_refused(text: str) -> None:
    for read in (SamplingOptions.from_text, size_of, lambda t: find_classes(t, ["a", "b"], 2)):
        assert refusal(read, text) != ""


@given(st.integers(1, 2**70), st.integers(0, 2**70), st.integers(1, 2**70))
def test_schedules_of_any_size_are_refused_at_once(full: int, local: int, chain: int) -> None:
    def sizes() -> tuple[int, ...]:
        return SamplingOptions("mage", full, local, chain=chain).schedule(64).sizes

    assert refusal(sizes) or sum(sizes()) == 64


@FEW
@given(st.lists(st.text(max_size=12), max_size=4))
def test_arguments_of_any_text(tmp_path: Path, argv: list[str]) -> None:
    try:
        assert main(["plan", *argv]) in (0, 2)
    except SystemExit as left:
        assert left.code in (0, 2)  # noqa: PT017


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["random", "atheris"])
def test_fuzzing_finds_nothing(engine: str, tmp_path: Path) -> None:
    if engine == "atheris" and importlib.util.find_spec("atheris") is None:
        pytest.skip("needs atheris")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks.fuzz", "--engine", engine, "--seconds", "2", "--out", str(tmp_path)]
    command += ["--targets", "pickles", "archives", "configs"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    total = json.loads(done.stdout.splitlines()[-1])
    assert all(target["count"] > 50 for target in total["targets"])
