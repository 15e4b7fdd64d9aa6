"""`recap evaluate`, `sweep` and `report` on small models: results, resumption, errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recap import weights
from recap.checkpoints import save_pretrained
from recap.cli import evaluate as evaluate_command
from recap.cli import main
from recap.evaluation import evaluate as runner
from recap.evaluation.fid import FeatureStatistics
from recap.evaluation.measure import Measurement
from recap.evaluation.report import published
from recap.models.zoo import build, randomize
from tests import tiny
from tests.evaluation.watcher import Watcher
from tests.test_cli import Capture
from tests.test_pipeline import KL, VQ

SETTINGS = ["4", "8", "4+2", "4+4:u=0"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three small models in the package's place, a small network that looks at them, and statistics."""
    home = tmp_path / "weights"
    for family, other in (("maskgit", "vq"), ("mage", "vq"), ("mar", "kl")):
        net = randomize(build(tiny.CONFIGS[family]))
        sampling = {"preset": family, "full": 4, "local": 2} | ({"head_steps": [4, 3]} if family == "mar" else {})
        save_pretrained(net, home / f"flowers-{family}", tokenizer=f"../flowers-{other}", sampling=sampling)
    save_pretrained(randomize(build(KL)), home / "flowers-kl")
    save_pretrained(randomize(build(VQ)), home / "flowers-vq")
    monkeypatch.setattr(weights, "HOME", home)
    monkeypatch.setattr(evaluate_command, "load_inception", lambda path: Watcher(has_logits=path is not None))
    monkeypatch.chdir(tmp_path)
    FeatureStatistics.of(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).save("stats.npz")
    return tmp_path


def failure(capsys: Capture, *argv: str) -> str:
    """The one line with which a command gives up; progress bars may stand before it."""
    capsys.readouterr()
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def evaluate(*argv: str) -> dict[str, Any]:
    assert main(["evaluate", "--stats", "stats.npz", *argv]) == 0
    out = argv[argv.index("--out") + 1] if "--out" in argv else "evaluation"
    return json.loads((Path(out) / "result.json").read_text())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_batches_change_no_figure(family: str, place: Path, capsys: Capture) -> None:
    results = [
        evaluate("--model", f"flowers-{family}", "--num", "12", "--batch", batch, "--out", batch)
        for batch in ("12", "5")
    ]
    assert results[0]["figures"]["fid"] == pytest.approx(results[1]["figures"]["fid"], rel=1e-4)
    result = results[0]
    assert (result["num"], result["full"], result["local"], result["seed"]) == (12, 4, 2, 0)
    assert result["machine"]["torch"] == torch.__version__
    assert sum(result["seconds"][phase] for phase in ("full", "local", "head", "tokenizer")) > 0
    assert result["seconds"]["total"] == pytest.approx(12 * result["seconds_per_image"])
    assert "12 images, fid" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_ends_with_the_same_figures(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluate("--model", "flowers-mage", "--num", "12", "--batch", "4", "--out", "whole")
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    add, calls = Measurement.add, []

    def failing(self: Any, *args: Any) -> None:
        calls.append(args[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(self, *args)

    monkeypatch.setattr(Measurement, "add", failing)
    assert main(["evaluate", "--stats", "stats.npz", "--model", "flowers-mage", "--num", "12", "--batch", "4"]) == 130
    again = evaluate("--model", "flowers-mage", "--num", "12", "--batch", "4")
    assert [list(indices) for indices in calls[3:]] == [[8, 9, 10, 11]]  # the first eight were not drawn again
    assert again["figures"] == whole["figures"]


def test_a_state_of_another_run_and_a_damaged_one_are_refused(place: Path, capsys: Capture) -> None:
    common = ("evaluate", "--stats", "stats.npz", "--model", "flowers-mage", "--batch", "4")
    evaluate("--model", "flowers-mage", "--num", "8", "--batch", "4")
    assert "another run" in failure(capsys, *common, "--num", "8", "--seed", "1")
    Path("evaluation/state.pt").write_bytes(b"half a file")
    assert "remove it to start anew" in failure(capsys, *common, "--num", "8")


def test_images_are_measured_too(place: Path, capsys: Capture) -> None:
    folder = place / "pictures"
    folder.mkdir()
    for i in range(20):
        pixels = torch.randint(0, 255, (8, 8, 3), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i:02d}.png")
    result = evaluate("--images", "pictures", "--save-stats", "ours.npz", "--inception", "official.pth")
    assert set(result["figures"]) == {"fid", "inception_score", "inception_score_std"}
    again = main(["evaluate", "--images", "pictures", "--stats", "ours.npz", "--out", "again"])
    assert again == 0
    figures = json.loads(Path("again/result.json").read_text())["figures"]
    assert figures["fid"] == pytest.approx(0, abs=1e-6)
    assert main(["evaluate", "--images", "pictures", "--stats", "pictures", "--out", "both"]) == 0
    both = json.loads(Path("both/result.json").read_text())["figures"]
    assert (both["precision"], both["recall"]) == (1.0, 1.0)
    (folder / "05.png").write_bytes(b"no picture")
    assert "05.png" in failure(capsys, "evaluate", "--images", "pictures", "--stats", "ours.npz")


def test_too_few_images_are_said_to_be(place: Path, capsys: Capture) -> None:
    evaluate("--model", "flowers-mage", "--num", "5", "--batch", "5")
    assert "warning: 5 features of size 6" in capsys.readouterr().out


def test_mistakes_are_one_line(place: Path, capsys: Capture) -> None:
    np.savez("other.npz", mu=np.zeros(5), sigma=np.eye(5), n=50)
    run = ("evaluate", "--model", "flowers-mage", "--num", "8")
    assert "5 features but the network gives 6" in failure(capsys, *run, "--stats", "other.npz")
    assert "does not exist" in failure(capsys, *run, "--stats", "none.npz")
    assert "--batch" in failure(capsys, *run, "--stats", "stats.npz", "--batch", "0")
    maskgit = ("evaluate", "--model", "flowers-maskgit", "--stats", "stats.npz", "--classes", "reference")
    assert "--classes even" in failure(capsys, *maskgit)
    sweep = ("sweep", "--model", "flowers-mage", "--stats", "stats.npz", "--num", "4")
    assert "cannot be read" in failure(capsys, *sweep, "--settings", "4+")
    assert "setting 99" in failure(capsys, *sweep, "--settings", "99")
    assert not Path("sweep").exists()
    assert "recap sweep" in failure(capsys, "report", "nowhere")


def test_a_full_disk_leaves_the_last_state(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    run = ("evaluate", "--stats", "stats.npz", "--model", "flowers-mage", "--num", "12", "--batch", "4")
    assert "No space left" in failure(capsys, *run)
    assert {file.name for file in Path("evaluation").iterdir()} == {
        ".lock",
        "state.pt",
    }  # whole, and no half file beside it
    assert int(torch.load("evaluation/state.pt", weights_only=True)["done"]) == 4
    assert main(list(run)) == 0


def sweep(*argv: str, settings: list[str] = SETTINGS) -> dict[str, Any]:
    common = ["--model", "flowers-mage", "--stats", "stats.npz", "--num", "10", "--batch", "5"]
    assert main(["sweep", *common, "--settings", *settings, *argv]) == 0
    return json.loads(Path("sweep/sweep.json").read_text())


def test_a_sweep_goes_on_where_it_stopped(place: Path, capsys: Capture) -> None:
    first = sweep(settings=SETTINGS[:2])
    assert [row["setting"] for row in first["rows"]] == SETTINGS[:2]
    assert "0 points done, 2 to go" in capsys.readouterr().out
    whole = sweep("--repeat", "8")
    assert "2 points done, 4 to go" in capsys.readouterr().out  # two settings and two more seeds
    assert [row["setting"] for row in whole["rows"]] == SETTINGS
    assert whole["rows"][0] == first["rows"][0] | {"front": whole["rows"][0]["front"]}
    assert [row["seeds"] for row in whole["rows"]] == [1, 3, 1, 1]
    assert whole["rows"][1]["spread"] > 0
    assert whole["rows"][3]["against"]["equal_steps"]["setting"] == "8"
    with Image.open("sweep/sweep.png") as picture:
        assert min(picture.size) > 300
    assert not list(Path("sweep").glob("state-*"))
    assert len(Path("sweep/sweep.csv").read_text().splitlines()) == 5
    assert "other num" in failure(
        capsys, "sweep", "--model", "flowers-mage", "--stats", "stats.npz", "--num", "11", "--batch", "5"
    )


def test_times_can_be_taken_again(place: Path) -> None:
    before = sweep()
    path = Path("sweep/points.jsonl")
    slow = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(p | {"seconds": {"total": 99.0, "full": 98.0}}) + "\n" for p in slow))
    common = ["--model", "flowers-mage", "--stats", "stats.npz", "--num", "10", "--batch", "5"]
    assert main(["sweep", *common, "--retime"]) == 0
    after = json.loads(Path("sweep/sweep.json").read_text())
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert new["figures"] == old["figures"]
        assert 0 < new["seconds"] < 90
        assert set(new["phases"]) == {"full", "local", "head", "selection", "tokenizer", "total"}


def test_a_report_holds_every_setting(place: Path, capsys: Capture) -> None:
    sweep("--repeat", "8")
    Path("findings.md").write_text("## Findings\n\nNone.\n")
    assert main(["report", "sweep", "--findings", "findings.md", "--out", "docs/results.md"]) == 0
    text = Path("docs/results.md").read_text()
    for setting in SETTINGS:
        assert f"| {setting} |" in text
    assert "At equal time" in text or "equal times cannot be compared" in text
    assert "## Findings" in text
    assert "](results/flowers-mage-sweep.png)" in text
    assert Path("docs/results/flowers-mage-sweep.png").is_file()
    assert len(json.loads(Path("docs/results/flowers-mage.json").read_text())["rows"]) == 4
    assert "published" not in text
    assert main(["report", "sweep", "--against", "paper", "--as", "mage-large", "--out", "docs/other.md"]) == 0
    assert "published FID" in Path("docs/other.md").read_text()
    Path("sweep/sweep.json").write_text("{}")
    assert "run it again" in failure(capsys, "report", "sweep")


def test_published_figures_are_marked_and_complete() -> None:
    assert len(published()) > 90
    rows = {(row["full"], row["local"]): row for row in published("mar-huge") if row["table"].startswith("system")}
    assert (rows[96, 32]["fid"], rows[96, 32]["seconds"], rows[96, 32]["plain"]) == (1.57, 1.0, 64)
    assert all(row["fid"] > 0 for row in published())
