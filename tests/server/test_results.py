"""Published points: what the page plots is what was measured."""

import json
from pathlib import Path

from recap.evaluation.sweep import front, read_points
from recap.server.app import PAGE

MEASURED = Path(__file__).parents[2] / "docs" / "results"


def test_every_point_of_the_page_is_the_mean_of_what_was_measured() -> None:
    for model in json.loads((PAGE / "results.json").read_text())["models"]:
        measured = read_points(MEASURED / f"{model['name']}.jsonl")
        assert model["points"]
        for point in model["points"]:
            several = [each for each in measured if each.schedule == point["schedule"]]
            assert abs(point["fid"] - sum(each.figures["fid"] for each in several) / len(several)) <= 0.005001
            mean = sum(each.seconds["total"] for each in several) / len(several)
            assert abs(point["seconds"] / mean - 1) < 1e-3
            assert point["reused"] is (point["local"] > 0)
        best = front([(point["seconds"], point["fid"]) for point in model["points"]])
        assert sum(point["front"] for point in model["points"]) >= len(best) - 1  # equal after rounding
