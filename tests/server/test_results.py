"""Published points: what the page plots is what was measured."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_points_of_the_page_are_those_that_were_measured() -> None:
    program = runpy.run_path(str(ROOT / "benchmarks" / "results.py"))
    found = program["collected"](ROOT / "docs" / "results")
    assert len(found["models"]) == 3
    assert program["RESULTS"].read_text() == program["written"](found), (
        "run python benchmarks/results.py docs/results"
    )
