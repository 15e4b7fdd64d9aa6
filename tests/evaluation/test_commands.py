"""`recap evaluate`, `sweep` and `report` on small models: results, resumption, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from recap.cli import evaluate as evaluate_command
from recap.cli import main, measuring
from recap.evaluation import shards
from recap.evaluation.features import look
from recap.evaluation.metrics import FeatureStatistics
from recap.evaluation.report import published
from tests import tiny
from tests.evaluation.watcher import Watcher

Capture = pytest.CaptureFixture[str]
SCHEDULES = ["4", "8", "4+2", "4+4:warmup=0"]
SWEEP = ("--model", "flowers-mage", "--stats", "stats.npz", "--num", "10", "--batch", "5")


@pytest.fixture
def place(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where there are three small models, a small network that looks at their images, and statistics."""
    for command in (evaluate_command, measuring):
        monkeypatch.setattr(command, "load_inception", lambda path: Watcher(has_logits=path is not None))
    FeatureStatistics.of(torch.randn(40, 6, generator=torch.Generator().manual_seed(0))).save("stats.npz")
    return home.parent


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
    assert results[0]["figures"] == results[1]["figures"]
    result = results[0]
    assert (result["num"], result["seed"]) == (12, 0)
    assert result["evaluations"] == f"{result['sampling']['full']}+{result['sampling']['local']}"
    assert result["machine"]["torch"] == torch.__version__
    assert min(result["seconds"].values()) > 0
    assert result["seconds"]["total"] == result["seconds_per_image"]
    assert "12 images, fid" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_ends_with_the_same_figures(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run = ("--model", "flowers-mage", "--num", "12", "--batch", "4")
    whole = evaluate(*run, "--out", "whole")
    looked: list[int] = []

    def stopped(net: Any, pictures: Any) -> Any:
        looked.append(len(pictures))
        if len(looked) == 3:
            raise KeyboardInterrupt
        return look(net, pictures)

    monkeypatch.setattr(shards, "look", stopped)
    assert main(["evaluate", "--stats", "stats.npz", *run]) == 130
    assert evaluate(*run)["figures"] == whole["figures"]
    assert looked == [4, 4, 4, 4]  # the first eight were not made again
    other = ("--stats", "stats.npz", *run, "--seed", "1")
    assert "a run with other seed" in failure(capsys, "evaluate", *other)
    assert main(["evaluate", *other, "--overwrite"]) == 0


def test_images_are_measured_too(place: Path, capsys: Capture) -> None:
    folder = place / "pictures"
    folder.mkdir()
    for i in range(20):
        pixels = torch.randint(0, 255, (8, 8, 3), generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f"{i:02d}.png")
    result = evaluate("--images", "pictures", "--save-stats", "ours.npz", "--inception", "official.pth")
    assert set(result["figures"]) == {"fid", "inception_score", "inception_score_std"}
    assert main(["evaluate", "--images", "pictures", "--stats", "ours.npz", "--out", "again"]) == 0
    figures = json.loads(Path("again/result.json").read_text())["figures"]
    assert figures["fid"] == pytest.approx(0, abs=1e-6)
    assert main(["evaluate", "--images", "pictures", "--stats", "pictures", "--out", "both"]) == 0
    both = json.loads(Path("both/result.json").read_text())["figures"]
    assert (both["precision"], both["recall"]) == (1.0, 1.0)
    (folder / "05.png").write_bytes(b"no picture")
    assert "05.png" in failure(capsys, "evaluate", "--images", "pictures", "--stats", "ours.npz")


def test_mistakes_are_one_line(place: Path, capsys: Capture) -> None:
    np.savez("other.npz", mu=np.zeros(5), sigma=np.eye(5), n=50)
    run = ("evaluate", "--model", "flowers-mage", "--num", "8")
    assert "5 features but the network gives 6" in failure(capsys, *run, "--stats", "other.npz")
    assert not Path("evaluation").exists()  # nothing is generated that cannot be compared
    assert "does not exist" in failure(capsys, *run, "--stats", "none.npz")
    assert "num_images is 0" in failure(capsys, *run, "--stats", "stats.npz", "--num", "0")
    assert "cannot be read" in failure(capsys, "sweep", *SWEEP, "--schedule", "4+")
    evaluate("--model", "flowers-mage", "--num", "5")
    assert "warning: 5 features of size 6" in capsys.readouterr().out  # too few
    assert "schedule 99" in failure(capsys, "sweep", *SWEEP, "--schedule", "99")
    assert not Path("sweep").exists()
    assert "recap sweep" in failure(capsys, "report", "nowhere", "--out", "page.md")
    with pytest.raises(SystemExit):
        main(["report", "nowhere"])  # nothing is overwritten that was not named
    assert "--out" in capsys.readouterr().err


def sweep(*argv: str, schedules: list[str] = SCHEDULES) -> dict[str, Any]:
    assert main(["sweep", *SWEEP, "--schedule", *schedules, *argv]) == 0
    return json.loads(Path("sweep/sweep.json").read_text())


def test_a_sweep_goes_on_where_it_stopped(place: Path, capsys: Capture) -> None:
    first = sweep(schedules=SCHEDULES[:2])
    assert [row["schedule"] for row in first["rows"]] == SCHEDULES[:2]
    assert "0 points done, 2 to go" in capsys.readouterr().out
    whole = sweep("--repeat", "8")
    assert "2 points done, 4 to go" in capsys.readouterr().out  # two schedules and two more seeds
    assert [row["schedule"] for row in whole["rows"]] == SCHEDULES
    assert whole["rows"][0] == first["rows"][0] | {"front": whole["rows"][0]["front"]}
    assert [row["seeds"] for row in whole["rows"]] == [1, 3, 1, 1]
    assert whole["rows"][1]["spread"] > 0
    assert whole["rows"][3]["against"]["equal_steps"]["schedule"] == "8"
    with Image.open("sweep/sweep.png") as picture:
        assert min(picture.size) > 300
    assert {path.name for path in Path("sweep").iterdir()} == {"sweep.json", "sweep.png"}
    assert "other num" in failure(capsys, "sweep", *SWEEP, "--num", "11")
    assert "other sampling" in failure(capsys, "sweep", *SWEEP, "--preset", "maskgit")


def test_times_can_be_taken_again(place: Path) -> None:
    before = sweep(schedules=SCHEDULES[1:3])
    slow = [point | {"seconds": {"total": 99.0, "full": 98.0}} for point in before["points"]]
    Path("sweep/sweep.json").write_text(json.dumps(before | {"points": slow}))
    assert main(["sweep", *SWEEP, "--retime"]) == 0
    after = json.loads(Path("sweep/sweep.json").read_text())
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert new["figures"] == old["figures"]
        assert 0 < new["seconds"] < 90
        assert set(new["phases"]) == {"full", "local", "head", "selection", "tokenizer", "total"}


def test_a_report_holds_every_schedule(place: Path, capsys: Capture) -> None:
    schedules = ["4", "8", "4+2", "12+4"]
    sweep(schedules=schedules)
    Path("findings.md").write_text("## Findings\n\nNone.\n")
    assert main(["report", "sweep", "--findings", "findings.md", "--out", "docs/results.md"]) == 0
    text = Path("docs/results.md").read_text()
    assert all(f"| {schedule} |" in text for schedule in schedules)
    assert "At equal time" in text or "equal times cannot be compared" in text
    assert "## Findings" in text
    assert "](results/flowers-mage-sweep.png)" in text
    assert Path("docs/results/flowers-mage-sweep.png").is_file()
    assert len(json.loads(Path("docs/results/flowers-mage.json").read_text())["rows"]) == 4
    assert "published" not in text
    assert main(["report", "sweep", "--against", "paper", "--as", "maskgit-large", "--out", "docs/other.md"]) == 0
    theirs = next(row for row in published("maskgit-large") if (row["full"], row["local"]) == (12, 4))
    (line,) = [line for line in Path("docs/other.md").read_text().splitlines() if line.startswith("| 12+4 |")]
    assert line.endswith(f"| {theirs['fid']} | {theirs['seconds']} |")
    Path("sweep/sweep.json").write_text("{}")
    assert "run it again" in failure(capsys, "report", "sweep", "--out", "docs/other.md")


def test_published_figures_are_marked_and_complete() -> None:
    assert len(published()) > 90
    rows = {(row["full"], row["local"]): row for row in published("mar-huge") if row["table"].startswith("system")}
    assert (rows[96, 32]["fid"], rows[96, 32]["seconds"], rows[96, 32]["warmup"]) == (1.57, 1.0, 64)
    assert all(row["fid"] > 0 for row in published())
