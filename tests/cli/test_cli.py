"""The command line: what it prints, writes and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from recap.checkpoints import save_pretrained
from recap.cli import main
from recap.models.registry import SIZES, build, randomize, tiny
from tests import tiny as tinies

Capture = pytest.CaptureFixture[str]


def printed(capsys: Capture, *argv: str) -> Any:
    assert main(argv) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_of_one_schedule(capsys: Capture) -> None:
    argv = ["plan", "--model", "mar-large", "--full", "72", "--local", "24"]
    (row,) = printed(capsys, *argv, "--json")
    assert (row["model"], row["full"], row["local"], sum(row["tokens"])) == ("mar-large", 72, 24, 256)
    assert [n for group in row["groups"] for n in group] == row["tokens"]
    assert row["speedup"] == pytest.approx(row["flops_plain"] / row["flops"])
    assert len(printed(capsys, "plan", "--json")) == 17  # of the paper
    (half,) = printed(capsys, *argv, "--dtype", "bfloat16", "--json")
    assert 2 * half["cache_bytes"] == row["cache_bytes"]
    assert half["flops"] == row["flops"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "72+24" in text
    bars = text.split("parted by bars:\n")[1].splitlines()[0]
    assert [[int(n) for n in group.split()] for group in bars.split("|")] == row["groups"]


def test_plan_by_text_and_by_arguments_is_the_same(capsys: Capture) -> None:
    argv = ["plan", "--json", "--model", "mar-large"]
    (row,) = printed(capsys, *argv, "--schedule", "12+4:warmup=8,guidance=2,head_steps=20/10,preset=mar-huge")
    more = ["--full", "12", "--local", "4", "--warmup", "8", "--guidance", "2", "--head-steps", "20/10"]
    assert [row] == printed(capsys, *argv, *more, "--preset", "mar-huge")
    assert (row["preset"], row["full"], row["local"], row["warmup"]) == ("mar-huge", 12, 4, 8)


def test_plan_of_a_folder(capsys: Capture, tmp_path: Path) -> None:
    net = build(tiny(SIZES["mar-base"]))
    folder = str(save_pretrained(net, tmp_path / "m", sampling={"preset": "mar-huge"}))
    (row,) = printed(capsys, "plan", "--model", folder, "--full", "8", "--local", "4", "--json")
    assert (row["model"], row["preset"], sum(row["tokens"])) == (folder, "mar-huge", 64)


@pytest.mark.parametrize("name", ["mar-base", "mage-base", "maskgit-large"])
def test_verify_holds(name: str, capsys: Capture) -> None:
    checks = printed(capsys, "verify", name, "--tiny", "--json")
    assert len(checks) == (10 if name == "mar-base" else 11)  # of coupled draws where ids are drawn
    for check in checks:
        assert set(check) == {"name", "ok", "error", "tolerance"}
        assert check["ok"] is True
        assert 0 <= check["error"] <= check["tolerance"] == 1e-5


def test_verify_fails_when_rounding_is_not_allowed(capsys: Capture, tmp_path: Path) -> None:
    folder = str(save_pretrained(randomize(build(tinies.CONFIGS["mar"])), tmp_path / "m"))
    assert main(["verify", folder, "--tolerance", "0", "--json"]) == 1
    out, err = capsys.readouterr()
    checks = json.loads(out)
    broken = [check["name"] for check in checks if not check["ok"]]
    assert broken
    assert "cache bytes = predicted bytes" not in broken
    assert all(check["ok"] == (check["error"] <= 0) for check in checks)
    assert err == f"recap verify: {folder} fails {len(broken)} checks\n"


def test_verify_of_a_model_of_ones_own(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "from tests import tiny\nmodel = tiny.model('mage')\nnet, none = model.module, dict\n"
    (tmp_path / "recap_tried.py").write_text(mine + "def make(): return model\n")
    monkeypatch.chdir(tmp_path)
    for name in ("model", "net", "make"):
        assert main(["verify", f"recap_tried:{name}"]) == 0
        assert capsys.readouterr().out.endswith("all 11 checks passed\n")
    for wrong, why in (("recap_tried:other", "leads nowhere"), ("recap_tried:none", "gives a dict")):
        assert main(["verify", wrong]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("name", ["mar-base", "mage-base", "maskgit-large"])
def test_sample_writes_images_and_what_was_run(name: str, capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "samples"
    argv = ["sample", "--model", name, "--tiny", "--num", "3", "--full", "3", "--local", "2", "--seed", "5"]
    assert main([*argv, "--out", str(out)]) == 0
    assert str(out / "grid.png") in capsys.readouterr().out
    names = ["000000.png", "000001.png", "000002.png", "grid.png", "manifest.json", "run.json"]
    assert sorted(p.name for p in out.iterdir() if p.name != ".lock") == names
    about = json.loads((out / "run.json").read_text())
    assert (about["full"], about["local"], about["seed"], sum(about["tokens"])) == (3, 2, 5, 64)
    assert about["labels"] == (None if name == "mage-base" else [0, 333, 666])
    with Image.open(out / "grid.png") as grid, Image.open(out / "000001.png") as image:
        assert (image.size, image.mode) == ((32, 32), "RGB")
        assert grid.size == (64, 64)
        assert grid.crop((32, 0, 64, 32)).tobytes() == image.tobytes()
