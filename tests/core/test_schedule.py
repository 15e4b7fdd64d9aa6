import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.core.counts import cosine_counts, counts_from, group_lengths, linear_counts, power_counts
from recap.core.presets import PAPER_ROWS, interpolated, maskgit, preset
from recap.core.schedule import Ramp, Schedule, cosine, from_counts, linear, power
from recap.core.steps import Group


def runs(text: str) -> list[int]:
    """'1x3 2' -> [1, 1, 1, 2]"""
    parts = [part.split("x") for part in text.split()]
    return [int(part[0]) for part in parts for _ in range(int(part[1]) if len(part) > 1 else 1)]


COSINE = {
    8: "5 15 24 31 39 45 48 49",
    20: "1 3 4 5 7 8 10 11 13x2 15 16 17x2 19 18 20 19 20x2",
    48: "1x7 2 3 2 3x3 4x4 5 4 5 6 5 6 5 7 6x2 7 6 7x3 8 7 8x2 7 8x4 9 8x3 9 8x2",
    64: "1x13 2 3 2x2 3x6 4 3 4x7 5x2 4 5x5 6 5x2 6 5 6x3 5 6x6 7 6x4 7 6x3",
    84: ("1x22 2x5 3 2 3 2 3x3 2 3x3 4 3x3 4 3 4x2 3 4x2 3 4x6 5 4x3 5 4 5 4x2 5 4 5x2 4 5x2 4 5x2 4 5x3 4 5x3 4"),
    96: ("1x29 2x6 3 2x2 3 2 3x2 2 3x4 2 3 4 3x5 4 3x2 4 3 4 3 4 3 4x3 3 4x4 3 4x10 5 4x6 5 4x5"),
    128: ("1x53 2x11 3 2x2 3 2x2 3 2 3 2x2 3x2 2 3 2 3x2 2 3x2 2 3x3 2 3x6 2 3x14 4 3x8 4 3x7"),
    256: "1x256",
}
POWER = {
    8: "2 6 15 23 34 45 59 72",
    12: "1 2 5 9 12 17 21 26 32 38 43 50",
    16: "1x2 2 4 6 9 10 13 15 19 21 24 28 31 34 38",
    20: "1x2 2x2 3 5 6 7 9 11 12 14 16 17 20 22 24 26 29x2",
    24: "1x4 3 2 4 5 6x2 8 9 10 11 13x2 16x2 18 20 21 22 25 24",
    32: "1x6 2x2 3x2 4 5 4 6x2 7x2 8 9 10x2 11 12x2 14x2 15 16 17x2 19 17",
}


@pytest.mark.parametrize(("steps", "counts"), COSINE.items())
def test_cosine_counts_are_those_of_the_official_loops(steps: int, counts: str) -> None:
    assert cosine_counts(256, steps) == runs(counts)


@pytest.mark.parametrize(("steps", "counts"), POWER.items())
def test_power_counts_are_those_of_maskgit_r(steps: int, counts: str) -> None:
    assert power_counts(256, steps) == runs(counts)


def test_linear_counts_are_even() -> None:
    assert linear_counts(256, 8) == [32] * 8
    assert max(linear_counts(100, 7)) - min(linear_counts(100, 7)) <= 1


@given(st.integers(1, 400), st.data())
def test_every_rule_decodes_every_token_once(tokens: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, tokens))
    rules: list[Callable[[int, int], list[int]]] = [cosine_counts, linear_counts]
    for rule in rules:
        counts = rule(tokens, steps)
        assert len(counts) == steps
        assert sum(counts) == tokens
        assert min(counts) >= 1
    ratios = data.draw(st.lists(st.floats(0, 1), min_size=steps - 1, max_size=steps - 1))
    schedule = from_counts(tokens, counts_from(tokens, [math.floor(tokens * ratio) for ratio in ratios]))
    assert schedule.tokens == tokens
    assert schedule.full == steps
    assert schedule.local == 0


@given(full=st.integers(1, 60), data=st.data())
def test_pairs_are_honoured_exactly(full: int, data: st.DataObject) -> None:
    chain = data.draw(st.integers(1, 5))
    local = data.draw(st.integers(0, full * chain))
    warmup = data.draw(st.none() | st.integers(0, full))
    lengths = group_lengths(full, local, warmup, chain)
    assert len(lengths) == full
    assert sum(lengths) == full + local
    assert max(lengths) <= chain + 1
    reusing = [i for i, length in enumerate(lengths) if length > 1]
    assert reusing == list(range(reusing[0], reusing[-1] + 1)) if reusing else local == 0
    if reusing:
        wished = (full + local) // 2 if warmup is None else warmup
        assert reusing[0] == min(wished, full - len(reusing))


@pytest.mark.parametrize("row", PAPER_ROWS, ids=str)
def test_rows_of_the_paper(row: object) -> None:
    assert isinstance(row, type(PAPER_ROWS[0]))
    schedule = row.schedule()
    assert (schedule.full, schedule.local) == (row.full, row.local)
    assert schedule.tokens == 256
    assert schedule.warmup == min(row.warmup, row.full - row.local)
    assert max(group.local for group in schedule) == 1


def test_overflowing_warmup_are_lowered() -> None:
    assert preset("maskgit-r", full=16, local=8, warmup=10).warmup == 8
    assert preset("mar-large", full=20, local=8).warmup == 12


def test_late_warmup_stay_where_the_paper_puts_them() -> None:
    schedule = preset("mar-large", full=64, local=20)
    assert [group.local for group in schedule] == [0] * 42 + [1] * 20 + [0] * 2


def test_maskgit_r_temperatures() -> None:
    for steps, low in ((16, 0.65), (20, 0.68), (24, 0.72), (32, 0.75)):
        taus = [step.temperature for step in preset("maskgit-r", full=steps).steps]
        assert taus[0] == 1.0
        assert taus[-1] == pytest.approx(low)
        x = 3 / (steps - 1)
        assert taus[3] == pytest.approx(low + (1 - math.sqrt(x)) * (1 - low))
    grouped = preset("maskgit-r", full=22, local=10, warmup=12)
    choices = [group.steps[0].choice_temperature for group in grouped]
    assert choices == pytest.approx([5.5 * (1 - (i + 1) / 22) for i in range(22)])
    assert all(step.rank_temperature == 1.0 for step in grouped.steps)


def test_mage_choice_temperature_grows_with_all_steps() -> None:
    for full, local, first in ((20, 0, 6.0), (50, 50, 12.0), (80, 48, 13.0), (35, 35, 9.0)):
        schedule = preset("mage", full=full, local=local)
        assert schedule.steps[0].choice_temperature == pytest.approx(first * (1 - 1 / full))
        assert schedule.groups[-1].steps[0].choice_temperature == 0
        assert schedule.warmup == (0 if local else full)
    assert maskgit(full=8).steps[0].choice_temperature == pytest.approx(4.5 * 7 / 8)


def test_published_values_are_interpolated_between_and_held_outside() -> None:
    table = {10: 1.0, 20: 2.0}
    assert [interpolated(table, n) for n in (5, 10, 15, 20, 99)] == [1.0, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize(("name", "scale"), [("mar-base", 2.9), ("mar-large", 3.0), ("mar-huge", 3.2)])
def test_mar_guidance_grows_with_the_decoded_share(name: str, scale: float) -> None:
    schedule = preset(name, full=12, local=4)
    decoded = 0
    for step in schedule.steps:
        decoded += step.tokens
        assert step.guidance == pytest.approx(1 + (scale - 1) * decoded / 256)
    assert schedule.steps[-1].guidance == scale
    heads = [[step.head_steps for step in group.steps] for group in schedule]
    assert all(steps[0] == 100 and set(steps[1:]) <= {50} for steps in heads)


def test_guidance_can_be_changed_afterwards() -> None:
    schedule = cosine(64, full=6, local=2)
    assert not schedule.guided
    ramped = schedule.with_guidance(Ramp(1.0, 4.0))
    assert ramped.guided
    assert ramped.steps[-1].guidance == 4.0
    assert ramped.with_guidance(1.0) == schedule


@pytest.mark.parametrize(
    ("make", "needle"),
    [
        (lambda: cosine(256, full=8, local=9), "no room in 8 groups"),
        (lambda: cosine(256, full=8, local=17, chain=2), "chain >= 3"),
        (lambda: cosine(256, full=257), "no room in 256 tokens"),
        (lambda: cosine(256, full=200, local=100), "no room in 256 tokens"),
        (lambda: cosine(256, full=0), "at least one full"),
        (lambda: cosine(256, full=4, local=-1), "negative"),
        (lambda: cosine(256, full=4, local=2, warmup=5), "warmup is 5"),
        (lambda: cosine(256, full=4, warmup=-1), "warmup is -1"),
        (lambda: cosine(256, full=4, chain=0), "chain is 0"),
        (lambda: cosine(256, full=4, temperature=-1.0), "temperature is -1.0; it must be 0 (greedy)"),
        (lambda: cosine(256, full=4, choice_temperature=-1.0), "choice_temperature"),
        (lambda: cosine(256, full=4, guidance=math.nan), "guidance"),
        (lambda: cosine(256, full=4, guidance=[1.0, 2.0]), "2 values for 4 sub-steps"),
        (lambda: cosine(256, full=4, head_steps=(1, 50)), "head_steps is 1"),
        (lambda: from_counts(256, [100, 100]), "add up to 200"),
        (lambda: from_counts(4, [2, 0, 2]), "commits 0 tokens"),
        (lambda: from_counts(4, [2, 2], full=3), "2 counts"),
        (lambda: power(20, full=20), "leave none"),
        (lambda: linear(8, full=9), "no room"),
        (lambda: preset("mar-larg", full=4), "did you mean 'mar-large'"),
        (lambda: cosine(10, full=2, known=-1), "known is -1"),
        (lambda: Schedule(()), "no groups"),
        (lambda: Group(()), "no steps"),
    ],
)
def test_bad_schedules_say_what_to_change(make: Callable[[], object], needle: str) -> None:
    with pytest.raises(ValueError, match=re.escape(needle)):
        make()


def test_guidance_grows_with_the_share_of_all_tokens() -> None:
    schedule = cosine(8, full=4, guidance=Ramp(1.0, 3.0), known=8)
    shares = [8 + sum(schedule.sizes[: s + 1]) for s in range(4)]
    assert [step.guidance for step in schedule.steps] == [1 + 2 * share / 16 for share in shares]
    assert schedule.with_guidance(Ramp(1.0, 3.0)) == schedule
    assert schedule.with_guidance(2.0).known == 8
