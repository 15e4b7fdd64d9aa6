"""`recap edit`, `recap sample --order`, and the pictures and masks that they work on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recap import fit
from recap.cli import main
from recap.view.images import PLACES, keep_mask

Capture = pytest.CaptureFixture[str]


def picture(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def run(*argv: str) -> Any:
    assert main(["edit", "--model", "maskgit", "--out", "out", "--overwrite", *argv]) == 0
    return json.loads(Path("out/run.json").read_text())


def test_edit_writes_the_result_a_strip_and_what_was_done(place: Path, capsys: Capture) -> None:
    about = run("--image", "small.png", "--mask", "mask.png", "--labels", "1,3", "--full", "3", "--local", "2")
    out, err = capsys.readouterr()
    assert "8 of 16 tokens regenerated with 3+2 evaluations, 2 versions" in out
    assert "2/2" in err
    names = sorted(path.name for path in Path("out").iterdir() if path.name != ".lock")
    assert names == ["000000.png", "000001.png", "manifest.json", "run.json", "strip.png"]
    assert picture("out/000000.png").size == (8, 8)
    strip = picture("out/strip.png")
    assert strip.width > 4 * 192
    edit = about["edit"]
    assert (edit["image"], edit["mask"], edit["regenerated"], edit["of"]) == ("small.png", "mask.png", 8, 16)
    assert (about["labels"], about["full"], about["local"], sum(about["tokens"])) == ([1, 3], 3, 2, 8)
    assert about["evaluations"] == "3+2"


def test_ways_to_say_what_is_drawn(place: Path) -> None:
    usual = ["--image", "small.png", "--labels", "1"]

    def result(*argv: str) -> tuple[bytes, int]:
        about = run(*usual, *argv)
        return Path("out/000000.png").read_bytes(), about["edit"]["regenerated"]

    by_mask = result("--mask", "mask.png")
    assert by_mask == result("--redraw", "4,0,8,8") == result("--keep", "left") == result("--keep", "left:0.5")
    assert by_mask != result("--keep", "right:0.5")
    assert result("--keep", "center:0.5")[1] == 12
    assert result("--redraw", "0,0,3,1")[1] == 2
    assert result("--strength", "0.25")[1] == 4
    assert result("--strength", "1")[1] == 16
    assert by_mask[0] != result("--mask", "mask.png", "--seed", "1")[0]
    assert by_mask == result("--mask", "mask.png", "--batch", "1")
    assert by_mask[0] == result("--mask", "mask.png", "--num", "3")[0] != Path("out/000002.png").read_bytes()


def test_pictures_are_made_to_fit(place: Path) -> None:
    about = run("--image", "large.jpg", "--mask", "left.png", "--labels", "1", "--fit", "--paste")
    # the left third of 60 x 40 is the left quarter of its middle square
    assert about["edit"]["regenerated"] == 4
    result, before = np.asarray(picture("out/000000.png")), np.asarray(fit(picture("large.jpg"), 8))
    assert (result[:, 2:] == before[:, 2:]).all()
    assert (result[:, :2] != before[:, :2]).any()


def test_models_without_classes_are_edited_without_labels(place: Path) -> None:
    argv = ["edit", "--model", "mage", "--image", "small.png", "--keep", "bottom:0.25", "--num", "2", "--out", "out"]
    assert main(argv) == 0
    assert json.loads(Path("out/run.json").read_text())["labels"] is None


def test_orders_by_name(place: Path) -> None:
    made: dict[str, bytes] = {}
    for order in ("random", "confidence"):
        argv = ["sample", "--model", "maskgit", "--num", "1", "--out", order, "--order", order]
        assert main(argv) == 0
        assert json.loads((place / order / "run.json").read_text())["order"] == order
        made[order] = (place / order / "000000.png").read_bytes()
    assert main(["sample", "--model", "maskgit", "--num", "1", "--out", "own"]) == 0
    assert (place / "own" / "000000.png").read_bytes() == made["confidence"] != made["random"]


def test_a_folder_with_another_edit_is_refused(place: Path, capsys: Capture) -> None:
    usual = ["edit", "--model", "maskgit", "--out", "out", "--image", "small.png", "--labels", "1"]
    assert main([*usual, "--keep", "left"]) == 0
    capsys.readouterr()
    for other in (["--keep", "top"], ["--strength", "0.5"], ["--keep", "left", "--paste"]):
        assert main([*usual, *other]) == 2
        assert "holds a run with other" in capsys.readouterr().err
    assert main([*usual, "--keep", "left"]) == 0  # it goes on, and there is nothing left to do


def test_shrunken_evaluations_are_said(place: Path, capsys: Capture) -> None:
    usual = ["--image", "small.png", "--labels", "1", "--keep", "left"]
    run(*usual)
    assert "3+2 evaluations (in proportion to 6+4 for all tokens)" in capsys.readouterr().out
    run(*usual, "--schedule", "3+2")
    assert "in proportion" not in capsys.readouterr().out


@given(st.integers(2, 64), st.sampled_from(PLACES), st.floats(0.05, 0.95))
def test_what_is_kept_is_as_large_as_was_said(side: int, where: str, share: float) -> None:
    kept = round(side * share)
    if not 0 < kept < side:
        with pytest.raises(ValueError, match="all or nothing"):
            keep_mask(side, where, share)
        return
    black = np.asarray(keep_mask(side, where, share)) == 0
    assert black.sum() == (kept * kept if where == "center" else kept * side)
    edges = {"left": black[:, 0], "right": black[:, -1], "top": black[0], "bottom": black[-1]}
    assert where == "center" or edges[where].all()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 16))
def test_whatever_a_mask_touches_stays_white_when_it_is_made_to_fit(width: int, height: int, side: int) -> None:
    least = min(width, height)
    left, top = (width - least) // 2, (height - least) // 2
    mask = Image.new("L", (width, height), 0)
    assert not np.asarray(fit(mask, side, mask=True)).any()
    mask.putpixel((left + least // 2, top + least // 3), 255)
    fitted = np.asarray(fit(mask, side, mask=True))
    assert set(np.unique(fitted)) <= {0, 255}
    touched = [int((least // part) * side / least) for part in (3, 2)]  # row and column
    assert fitted[*touched] == 255
    assert fitted.astype(bool).sum() <= (side / least + 2) ** 2
