"""Plots: readable pictures, the same again for the same numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.evaluation.drift import Drift
from recap.evaluation.error import LocalError
from recap.evaluation.plots import COLOURS, Point, plot_drift, plot_error, plot_front


def picture(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.size[0] >= 600
        assert image.size[1] >= 400
        return np.asarray(image.convert("RGB"))


def has_colour(pixels: np.ndarray, colour: str) -> bool:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return bool((np.abs(pixels.astype(int) - wanted).max(axis=-1) < 8).any())


DRIFT = Drift(["a", "b"], [2, 4], [1, 2, 4], [[[1.0, 0.9], [0.8, 0.9], [0.5, 0.7]], [[1.0, 1.0], [0.9, 0.95]]], 3)
ROWS = [LocalError(2, 0.1, 3, 2, 0.02, 0.05), LocalError(4, 0.6, 5, 3, 0.01, 0.02)]
POINTS = [
    Point(0.1, 30.0, "8"),
    Point(0.2, 20.0, "16", error=1.0),
    Point(0.12, 22.0, "8+8", "reused", front=True, error=0.5),
    Point(0.24, 19.0, "16+16", "reused", front=True),
]


def test_plots_are_pictures(tmp_path: Path) -> None:
    plot_drift(DRIFT, tmp_path / "drift.png", title="tiny")
    assert picture(tmp_path / "drift.png").std() > 5
    for name, log in (("front.png", False), ("log.png", True)):
        drawn = picture(plot_front(POINTS, tmp_path / name, log=log, reference=[("tokenizer", 15.0)]))
        assert all(has_colour(drawn, colour) for colour in COLOURS.values())
    plot_front(POINTS[:2], tmp_path / "plain.png")
    assert not has_colour(picture(tmp_path / "plain.png"), COLOURS["reused"])
    assert has_colour(picture(plot_error(ROWS, tmp_path / "error.png")), COLOURS["reused"])


def test_vector_plots_are_the_same_again(tmp_path: Path) -> None:
    once = plot_front(POINTS, tmp_path / "once.svg").read_text()
    assert "<svg" in once
    assert once == plot_front(POINTS, tmp_path / "again.svg").read_text()


def test_plots_refuse_what_they_cannot_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg"):
        plot_drift(DRIFT, tmp_path / "drift.bmp")
    with pytest.raises(ValueError, match="no points"):
        plot_front([], tmp_path / "front.png")
    with pytest.raises(ValueError, match="plain, reused"):
        plot_front([Point(1, 1, "8", "fast")], tmp_path / "front.png")
    with pytest.raises(ValueError, match="no local evaluations"):
        plot_error([], tmp_path / "error.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"recap-mgm\[eval\]"):
        plot_drift(DRIFT, tmp_path / "drift.png")
    assert not list(tmp_path.iterdir())
