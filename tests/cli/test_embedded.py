"""The commands with models that come with the package."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from recap import load, weights
from recap.cli import main
from recap.models.registry import SIZES, TOKENIZER_SIZES
from tests.cli.test_errors import Capture, refused


def sample(*argv: str) -> dict[str, Any]:
    assert main(["sample", "--overwrite", *argv]) == 0
    out = argv[argv.index("--out") + 1] if "--out" in argv else "samples"
    return json.loads((Path(out) / "run.json").read_text())


def test_sample_by_name_and_label(home: Path, capsys: Capture) -> None:
    run = sample("--model", "flowers-maskgit", "--labels", "sunflower,water lily", "--num", "3", "--seed", "4")
    assert "samples/grid.png" in capsys.readouterr().out
    assert run["labels"] == [1, 2, 1]
    assert run["class_names"] == ["Sunflower", "water lily", "Sunflower"]
    assert (run["evaluations"], run["full"], run["local"], run["warmup"]) == ("4+2", 4, 2, 0)
    assert len(set(run["seeds"])) == 3
    assert run["seconds"] > 0
    pipe = load("flowers-maskgit")
    pipe.progress = False
    for index, image in enumerate(pipe([1, 2, 1], seed=4).images):
        with Image.open(f"samples/{index:06d}.png") as written:
            assert written.tobytes() == image.tobytes()


def test_default_model_is_drawn_with_and_can_be_overridden(home: Path) -> None:
    assert sample("--num", "1")["model"] == "flowers-maskgit"
    mar = ("--model", "flowers-mar")
    run = sample(*mar, "--num", "2")
    assert (run["model"], run["evaluations"], run["head_steps"]) == ("flowers-mar", "4+2", [4, 3])
    assert (run["guidance"][-1], run["temperature"]) == (2.0, [0.9, 0.9])
    more = ("--guidance", "3", "--temperature", "0.8", "--full", "3", "--dtype", "bfloat16")
    changed = sample(*mar, "--num", "2", *more)
    assert (changed["full"], changed["local"], changed["dtype"]) == (3, 0, "bfloat16")
    assert changed["guidance"][0] < changed["guidance"][1] == 3.0
    assert changed["temperature"] == [0.8, 0.8]
    ramp = sample(*mar, "--num", "1", "--guidance", "2/4", "--preset", "mar-base")
    assert 2.0 < ramp["guidance"][0] < ramp["guidance"][1] == 4.0
    assert (ramp["temperature"], ramp["full"]) == ([1.0, 1.0], 4)
    assert sample(*mar, "--num", "1", "--local", "1")["full"] == 4


def test_sample_without_any_model_says_what_to_do(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "HOME", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "--model" in refused(capsys, "sample")
    assert weights.embedded() == []
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_one_line(home: Path, capsys: Capture) -> None:
    assert "did you mean 'flowers-mar'" in refused(capsys, "sample", "--model", "flower-mar")
    assert "did you mean 'flowers-mar'" in refused(capsys, "verify", "flower-mar")
    assert "fits 2 classes" in refused(capsys, "sample", "--labels", "lily")
    assert "--tiny" in refused(capsys, "sample", "--tiny")
    assert "tokenizer" in refused(capsys, "sample", "--model", "flowers-kl")
    assert not Path("samples").exists()


@pytest.mark.parametrize("name", ["flowers-maskgit", "flowers-mage"])
def test_comparison_is_drawn_and_measured(name: str, home: Path, capsys: Capture) -> None:
    run = sample("--model", name, "--num", "2", "--compare", "--out", "both")
    assert "both/compare.png" in capsys.readouterr().out
    other = run["compare"]
    assert other["full"] == run["full"] + run["local"]
    assert len(other["speedup"]["pairs"]) == 2
    assert other["speedup"]["processor"] > 0
    with Image.open("both/compare.png") as sheet, Image.open("both/000001.png") as image:
        large = image.resize((256, 256), Image.Resampling.LANCZOS)
        top = 28 + 36 + 316  # of the second row
        assert sheet.crop((28 + 266, top, 28 + 266 + 256, top + 256)).tobytes() == large.tobytes()
        equal = other["equal_time"]
        rows = 3 if 0 < equal < other["full"] else 2
        assert sheet.height // 316 == rows
    if rows == 3:
        sample("--model", name, "--num", "2", "--schedule", str(equal), "--out", "equal")
        with Image.open("both/compare.png") as sheet, Image.open("equal/000001.png") as image:
            large = image.resize((256, 256), Image.Resampling.LANCZOS)
            assert sheet.crop((28 + 266, top + 316, 28 + 266 + 256, top + 572)).tobytes() == large.tobytes()
    sample("--model", name, "--num", "2", "--out", "alone")
    assert Path("alone/grid.png").read_bytes() == Path("both/grid.png").read_bytes()


def test_a_complete_comparison_says_what_it_measured_and_draws_nothing(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["sample", "--num", "2", "--compare", "--out", "both"]
    assert main(line) == 0
    measured = capsys.readouterr().out.partition("reuse is ")[2].partition(" ->")[0]
    assert "over 2 pairs" in measured

    def unwanted(*args: object) -> None:
        raise AssertionError("something was drawn")

    monkeypatch.setattr("recap.runs.draw.begin", unwanted)
    assert main(line) == 0
    assert f"nothing measured; when they were made, reuse was {measured}" in capsys.readouterr().out
    for damaged in ({}, {"compare": {"speedup": {"pairs": [], "processor": 1}}}, {"compare": {"speedup": 1.4}}):
        Path("both/run.json").write_text(json.dumps(damaged))
        assert main(line) == 0
        assert "nothing measured; --overwrite makes and measures" in capsys.readouterr().out
    assert main([*line, "--overwrite"]) > 0
    assert "something was drawn" in capsys.readouterr().err
    assert not Path("both/run.json").exists()  # it told of images that are gone


def test_models_lists_embedded_ones_first(home: Path, capsys: Capture) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:5]] == [*weights.embedded(), "flowers-kl", "flowers-vq"]
    assert "8x8 pixels, 5 classes: pink primrose, Sunflower, water lily, ..." in lines[0]
    assert "8x8 pixels, unconditional" in lines[2]
    assert all(" MB " in line for line in lines[:5])
    assert [line.split()[0] for line in lines[5:]] == [*SIZES, *TOKENIZER_SIZES]
    assert all(" M " in line for line in lines)
