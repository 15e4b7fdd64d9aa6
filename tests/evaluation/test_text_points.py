"""Schedules of text against each other: what counts as equal, and when a gain is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from recap.core.blocks import text
from recap.evaluation.plots import plot_texts
from recap.evaluation.sweep import Point, Sweep, SweepRow, rows_of
from recap.evaluation.text_points import alike, as_good, better, speedup
from recap.evaluation.text_report import verdict


def point(
    schedule: str, perplexity: float | None, entropy: float, seconds: float, seed: int = 0, way: str = "temperature 1"
) -> Point:
    """One with errors of 1 and 0.01, timed in three turns of which the last was slow for all."""
    figures = {"entropy": entropy, "entropy_error": 0.01}
    if perplexity is not None:
        figures |= {"perplexity": perplexity, "perplexity_error": 1.0}
    full, _, local = schedule.partition(":")[0].partition("+")
    runs = {"wall": [seconds, seconds, 3 * seconds], "processor": [seconds] * 3}
    return Point(schedule, seed, 8, figures, {"total": seconds}, 0, (int(full), int(local or 0)), way, runs)


PLAIN = [point("8", 90, 4.6, 1.0), point("16", 70, 4.5, 2.0), point("32", 60, 4.5, 4.0), point("64", 58, 4.5, 8.0)]


def rows(*points: Point) -> dict[str, SweepRow]:
    return {row.schedule: row for row in rows_of([*PLAIN, *points])}


def test_gains_need_perplexity_and_entropy() -> None:
    found = rows(
        point("16+48", 59, 4.5, 2.5),
        point("8+8", 59, 4.4, 1.5),  # as likely as 64, but by repetition
        point("12+4", 50, 4.5, 9.0),
    )
    gain = found["16+48"].against["equal_quality"]
    assert gain["schedule"] == "32"  # 60 is within two errors of 59
    assert gain["speedup"] == pytest.approx(1.6)
    assert found["16+48"].against["equal_steps"]["schedule"] == "64"
    assert found["16+48"].against["equal_time"] == {"schedule": "16", "better": 1}
    assert not as_good(found["8+8"], found["32"])
    assert better(found["8+8"], found["32"]) == -1  # level in one, behind in the other
    assert better(found["8+8"], found["16"]) == 0  # ahead in one and behind in the other
    assert "equal_quality" not in found["12+4"].against  # nothing plain is as good: nothing is made up
    assert not found["64"].against
    said = verdict(list(found.values()))
    assert "The best plain decoding is 64" in said
    assert "with reuse is 16+48" in said
    assert "without it 32" in said
    assert "1.60x faster" in said
    assert "2 of 3 reused schedules are ahead" in said


def test_nothing_is_compared_with_another_way_to_draw() -> None:
    found = rows(point("16+48:temperature=0.8", 30, 4.5, 1.0, way="temperature 0.8"))
    assert found["16+48:temperature=0.8"].against == {}
    assert "At temperature 0.8, reused schedules alone were measured" in verdict(list(found.values()))
    assert found["8"].front  # nothing that draws alike beats it
    assert not rows(point("4+12", 89, 4.6, 0.9))["8"].front


def test_times_of_other_turns_give_no_ratio() -> None:
    one = point("16+48", 59, 4.5, 2.5)
    alone = replace(one, runs={})
    row = rows(alone)["16+48"]
    assert speedup(row, rows()["32"]) is None
    assert row.against["equal_quality"] == {"schedule": "32", "speedup": None}
    level = rows(point("16+48", 59, 4.5, 4.0))["16+48"]
    slower = replace(one, runs={"wall": [3.0, 5, 9], "processor": [4.0] * 3})
    unclear = rows(slower)["16+48"]
    assert level.against["equal_quality"]["speedup"] is not None
    assert unclear.against["equal_quality"]["speedup"] is None  # faster in one turn, slower in the next
    assert "not clear" in unclear.against["equal_quality"]["said"]


def test_seeds_together_have_smaller_errors() -> None:
    seeds = [point("16+48", 58.0 + seed, 4.5, 2.5, seed) for seed in range(4)]
    row = rows(*seeds)["16+48"]
    assert (row.quality, row.seeds) == (59.5, 4)
    assert row.figures["perplexity_error"] == pytest.approx(0.5)


def test_a_sweep_without_a_judge_is_kept_and_says_so(tmp_path: Path) -> None:
    sweep = Sweep({"modality": "text"}, [point("8", None, 4.5, 1.0), point("4+4", None, 4.5, 0.8)])
    sweep.write(tmp_path / "sweep.json")
    again = Sweep.read(tmp_path / "sweep.json")
    assert again == sweep
    assert not any(row.front or "equal_quality" in row.against for row in again.rows)
    assert "no judge" in verdict(again.rows)
    plot_texts(again.rows, tmp_path / "one.png", "tiny")
    plot_texts(rows_of(PLAIN), tmp_path / "two.png", "tiny")
    widths = []
    for name in ("one", "two"):
        with Image.open(tmp_path / f"{name}.png") as picture:
            widths.append(picture.size[0])
    assert widths[1] == 2 * widths[0]


def test_what_is_alike() -> None:
    assert alike(text(16, full=4)) == alike(text(16, full=2, local=4, block=8)) == "temperature 1"
    assert alike(text(16, full=4, temperature=0.8, top_k=5, top_p=0.9)) == "temperature 0.8, top_k 5, top_p 0.9"
    assert alike(text(16, full=4, top_p=1.0)) == "temperature 1"
