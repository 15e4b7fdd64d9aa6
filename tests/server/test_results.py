"""Published points: what the page plots is what was measured."""

import json
from pathlib import Path
from typing import Any

from recap.evaluation.settings import Setting
from recap.studio.results import RESULTS, collected, drawn, loadable, written

from recap import weights
from recap.evaluation.sweep import front, read_points

MEASURED = Path(__file__).parents[2] / "docs" / "results"


def test_the_packaged_points_are_those_that_were_measured() -> None:
    assert json.loads(RESULTS.read_text()) == collected(MEASURED), "run python -m recap.studio.results docs/results"
    assert RESULTS.read_text() == written(collected(MEASURED))


def test_every_measured_setting_is_a_point_with_its_mean() -> None:
    for model in json.loads(RESULTS.read_text())["models"]:
        points = read_points(MEASURED / f"{model['name']}.jsonl")
        by_setting: dict[str, list[Any]] = {}
        for point in points:
            by_setting.setdefault(point.setting, []).append(point)
        assert {point["setting"] for point in model["points"]} == set(by_setting)
        for point in model["points"]:
            several = by_setting[point["setting"]]
            assert abs(point["fid"] - sum(each.figures["fid"] for each in several) / len(several)) <= 0.005001
            mean = sum(each.seconds["total"] for each in several) / len(several)
            assert abs(point["seconds"] / mean - 1) < 1e-3
            assert point["reused"] is (point["local"] > 0)
        best = front([(point["seconds"], point["fid"]) for point in model["points"]])
        assert sum(point["front"] for point in model["points"]) >= len(best) - 1  # equal after rounding
        for word in ("H200", "4,096 images", "flowers128"):
            assert word in model["caption"]


def test_what_is_loadable_is_drawn_alike() -> None:
    """A setting that the page can load means the measured schedule, one that it cannot means another."""
    for name in weights.embedded():
        tokens, own = drawn(name)
        for text, fine in (
            ("32+32", True),
            ("64", True),
            ("16+48:u=0,chain=3", True),
            ("16+48:u=0,chain=3,renew=arrived", False),
            ("48+16:u=0,spread", False),
            ("32:temp=0.8", False),
        ):
            assert loadable(Setting.parse(text), own, tokens) is fine, (name, text)
