"""Plots: readable pictures, the same again for the same figures."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.evaluation.drift import Drift
from recap.evaluation.error import LocalError
from recap.evaluation.plots import COLOURS, plot_drift, plot_error, plot_front
from recap.evaluation.sweep import SweepRow


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.size[0] >= 600
        assert image.size[1] >= 400
        return np.asarray(image.convert("RGB"))


def has_colour(pixels: np.ndarray, colour: str) -> bool:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pixels.astype(int) - wanted).max(axis=-1) < 8).any())


DRIFT = Drift(["a", "b"], [2, 4], [1, 2, 4], [[[1.0, 0.9], [0.8, 0.9], [0.5, 0.7]], [[1.0, 1.0], [0.9, 0.95]]], 3)
ERRORS = [LocalError(2, 0.1, 3, 2, 0.02, 0.05), LocalError(4, 0.6, 5, 3, 0.01, 0.02)]
ROWS = [
    SweepRow("8", 30.0, 0.1, None, 1, {}, {}),
    SweepRow("16", 20.0, 0.2, 1.0, 3, {}, {}),
    SweepRow("8+8", 22.0, 0.12, 0.5, 3, {}, {}, front=True),
    SweepRow("16+16", 19.0, 0.24, None, 1, {}, {}, front=True),
]


def test_plots_are_pictures(tmp_path: Path) -> None:
    plot_drift(DRIFT, tmp_path / "drift.png", "tiny")
    assert picture(tmp_path / "drift.png").std() > 5
    plot_error(ERRORS, tmp_path / "error.png", "tiny", "error")
    assert has_colour(picture(tmp_path / "error.png"), COLOURS["reused"])
    for rows, reused in ((ROWS, True), (ROWS[:2], False)):
        plot_front(rows, tmp_path / "front.png", "tiny")
        drawn = picture(tmp_path / "front.png")
        assert has_colour(drawn, COLOURS["plain"])
        assert has_colour(drawn, COLOURS["reused"]) == reused
    plot_front(ROWS[:2], tmp_path / "again.png", "tiny")
    assert np.array_equal(drawn, picture(tmp_path / "again.png"))


def test_plots_say_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"recap-mgm\[eval\]"):
        plot_drift(DRIFT, tmp_path / "drift.png", "tiny")
    assert not list(tmp_path.iterdir())
