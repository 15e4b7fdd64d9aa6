"""Fronts, gains against plain decoding, and files that survive a crash."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.evaluation.sweep import Point, Sweep, front, rows_of


def point(schedule: str, fid: float, seconds: float, seed: int = 0) -> Point:
    return Point(schedule, seed, 100, {"fid": fid}, {"full": seconds / 2, "local": 0.0, "total": seconds})


POINTS = [
    point("8", 40.0, 1.0),
    point("16", 35.0, 2.0),
    point("32", 33.0, 4.0),
    point("64", 32.0, 8.0),
    point("32+32", 32.5, 4.5),
    point("12+4", 36.0, 1.8),
    point("48+16", 31.0, 6.5),
]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_the_front_is_what_nothing_beats(places: list[tuple[int, int]]) -> None:
    best = front(places)
    for i, (x, y) in enumerate(places):
        beaten = any(a <= x and b <= y and (a, b) != (x, y) for a, b in places)
        if i in best:
            assert not beaten
        elif not beaten:  # only one of several equal points is kept
            assert any(places[j] == (x, y) for j in best)


def test_gains_are_against_the_best_plain_schedule() -> None:
    rows = {row.schedule: row for row in rows_of(POINTS)}
    assert not rows["64"].against
    gain = rows["32+32"].against
    assert gain["equal_steps"] == {"schedule": "64", "speedup": 8.0 / 4.5, "quality": 32.0}
    assert gain["equal_quality"] == {"schedule": "64", "speedup": 8.0 / 4.5}  # 32 is not as good
    assert gain["equal_time"]["schedule"] == "32"
    assert gain["equal_time"]["gain"] == pytest.approx(0.5)
    assert "equal_quality" not in rows["48+16"].against  # no plain schedule is that good
    assert rows["12+4"].against["equal_quality"]["schedule"] == "16"
    assert rows["12+4"].against["equal_quality"]["speedup"] == pytest.approx(2.0 / 1.8)
    assert {name for name, row in rows.items() if row.front} == {"8", "12+4", "16", "32", "32+32", "48+16"}


def test_noise_is_no_gain() -> None:
    """A plain schedule that is worse by less than the spread over seeds counts as good."""
    seeds = [point("64", value, 8.0, seed) for seed, value in enumerate((31.5, 32.0, 32.5))]
    rows = {row.schedule: row for row in rows_of([*POINTS[:3], *seeds, *POINTS[4:]])}
    assert rows["64"].spread == pytest.approx(0.5)
    assert (rows["64"].quality, rows["64"].seeds) == (32.0, 3)
    assert rows["8"].spread is None
    assert rows["32+32"].against["equal_quality"]["schedule"] == "32"  # 33.0 is within 1.0 of 32.5
    assert rows["32+32"].against["equal_quality"]["speedup"] == pytest.approx(4.0 / 4.5)
    assert rows["48+16"].against["equal_quality"]["schedule"] == "64"


@pytest.mark.parametrize("other", ["guidance=9", "temperature=0.5", "choice_temperature=1", "preset=maskgit-r"])
def test_other_draws_are_no_baseline(other: str) -> None:
    rows = {row.schedule: row for row in rows_of([*POINTS, point(f"64:{other}", 1.0, 0.1)])}
    assert rows["32+32"].against["equal_quality"]["schedule"] == "64"


def test_sweeps_are_read_again_and_damage_is_named(tmp_path: Path) -> None:
    path, sweep = tmp_path / "sweep.json", Sweep({"model": "m"}, POINTS)
    sweep.write(path)
    assert Sweep.read(path) == sweep
    whole = path.read_text()
    for wrong in (whole[:20], "{}", "[]", whole.replace("fid", "kid"), whole.replace("total", "other")):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"sweep\.json is (no result|not valid)"):
            Sweep.read(path)
