"""Settings as text, and the schedules that they mean."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.core.counts import group_lengths
from recap.core.presets import Sampling
from recap.core.schedule import Ramp
from recap.evaluation.settings import Setting

TEXTS = (
    "64",
    "48+16",
    "48+16:u=8",
    "16+48:u=0,chain=3,spread,renew=arrived",
    "32+32:head=50/25",
    "8:guidance=2.5,temp=0.9,choice=12",
    "8+4:guidance=1/3.5",
    "8+4:chain=2,borrow",
    "8+4:anneal=50/10,solver=dpm,within=0.2/1",
)


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    assert str(Setting.parse(text)) == text


@given(
    st.builds(
        Setting,
        st.integers(1, 99),
        st.integers(0, 99),
        st.none() | st.integers(0, 9),
        st.integers(1, 9),
        st.booleans(),
        st.sampled_from(["group", "arrived"]),
        st.none() | st.tuples(st.integers(2, 200), st.integers(2, 200)),
        st.none() | st.integers(1, 50).map(lambda n: n / 8),
        st.none() | st.integers(1, 50).map(lambda n: n / 8),
        st.none() | st.integers(1, 50).map(lambda n: n / 8),
    )
)
def test_every_setting_survives_text(setting: Setting) -> None:
    assert Setting.parse(str(setting)) == setting


@pytest.mark.parametrize(
    "text", ["", "x", "48-16", "48+", "48+16:what=1", "48:u", "48:u=x", "8:spread=1", "8:renew=no", "-3"]
)
def test_other_text_is_refused_with_what_is_known(text: str) -> None:
    with pytest.raises(ValueError, match=r"setting .*(known are|expected|cannot be read)"):
        Setting.parse(text)


def test_a_setting_changes_only_what_it_says() -> None:
    own = Sampling("mar", guidance=Ramp(1.0, 3.0), temperature=0.95, head_steps=(50, 25))
    plain = Setting.parse("16").schedule(own, 256)
    assert plain == own.schedule(256, full=16, local=0)
    changed = Setting.parse("16:head=30,temp=0.5,guidance=2").schedule(own, 256)
    assert {step.head_steps for step in changed.steps} == {30}
    assert {step.token_temperature for step in changed.steps} == {0.5}
    assert changed.steps[-1].guidance == 2.0
    assert changed.steps[0].guidance < 1.1  # one number is the end of MAR's ramp
    assert changed.sizes == plain.sizes


def test_renewing_what_has_arrived_reaches_the_schedule() -> None:
    for preset in ("mar", "maskgit", "maskgit-r", "mage"):
        schedule = Setting.parse("8+16:u=0,chain=3,renew=arrived").schedule(Sampling(preset), 256)
        assert any(step.rows is not None for step in schedule.steps)
        assert all(step.rows is None for step in Setting.parse("8+16:chain=2").schedule(Sampling(preset), 256).steps)


@given(full=st.integers(1, 40), local=st.integers(0, 60), plain=st.integers(0, 40), chain=st.integers(1, 4))
def test_spreading_moves_local_evaluations_and_loses_none(full: int, local: int, plain: int, chain: int) -> None:
    if local > full * chain or plain > full:
        return
    spread = group_lengths(full=full, local=local, plain=plain, chain=chain, spread=True)
    packed = group_lengths(full=full, local=local, plain=plain, chain=chain)
    assert len(spread) == len(packed) == full
    assert sum(spread) == sum(packed) == full + local
    assert sorted(spread) == sorted(packed)
    reusing = -(-local // chain)
    assert all(length == 1 for length in spread[: min(plain, full - reusing)])
    places = [index for index, length in enumerate(spread) if length > 1]
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1  # evenly


def test_spreading_needs_counts() -> None:
    with pytest.raises(ValueError, match="spread"):
        group_lengths(total=8, spread=True)


@pytest.mark.parametrize("text", ["8:temp=1.23456789", "8:guidance=1e-07/2.000000001", "8+4:within=0.1234567/1"])
def test_every_digit_of_a_setting_is_read_back(text: str) -> None:
    setting = Setting.parse(text)
    assert Setting.parse(str(setting)) == setting
