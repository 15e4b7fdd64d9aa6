"""A model's own way of sampling: what it says, what it refuses, and what it becomes."""

from typing import Any

import pytest

from recap import Ramp, published
from recap.core.presets import PRESETS, PUBLISHED, Sampling, mage, mar, maskgit, maskgit_r

FULL: dict[str, Any] = {
    "preset": "mar",
    "guidance": [1.0, 2.5],
    "temperature": 0.9,
    "full": 12,
    "local": 4,
    "plain": 6,
    "head_steps": [40, 20],
}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_bare_preset_is_the_published_one(preset: str) -> None:
    for tokens, full, local in ((256, 48, 16), (64, 20, 7)):
        assert Sampling(preset).schedule(tokens, full=full, local=local) == published(
            preset, tokens, full=full, local=local
        )
    assert Sampling(preset).schedule() == published(preset, full=48, local=16)


def test_overrides_reach_every_step() -> None:
    steps = Sampling.from_dict(FULL).schedule(64).steps
    assert len(steps) == 16
    assert {step.token_temperature for step in steps} == {0.9}
    assert {step.head_steps for step in steps} == {40, 20}
    assert 1.0 < steps[0].guidance < steps[-1].guidance == 2.5
    for preset in ("maskgit", "maskgit-r", "mage"):
        own = Sampling(preset, temperature=0.7, choice_temperature=3.0, guidance=2.0)
        steps = own.schedule(64, full=10, local=4).steps
        assert {step.token_temperature for step in steps} == {0.7}
        assert {step.guidance for step in steps} == {2.0}
        assert steps[0].choice_temperature == pytest.approx(3.0 * 0.9)


def test_presets_take_overrides_and_keep_their_defaults() -> None:
    for preset in (maskgit, maskgit_r, mage):
        usual = preset(full=20)
        assert preset(full=20, temperature=0.5).sizes == usual.sizes
        assert preset(full=20, temperature=0.5, choice_temperature=1.0) != usual
    assert mar(full=20) == published("mar-large", full=20)
    assert maskgit(full=20).steps[0].choice_temperature == pytest.approx(4.5 * 0.95)


def test_one_number_of_guidance_means_what_it_does_in_the_family() -> None:
    assert Sampling("mar", guidance=3.0).schedule(full=8) == mar(guidance=Ramp(1.0, 3.0), full=8)
    assert {s.guidance for s in Sampling("maskgit", guidance=3.0).schedule(full=8).steps} == {3.0}
    assert not Sampling("mar", guidance=1.0).schedule(full=8).guided


def test_own_numbers_are_used_unless_others_are_given() -> None:
    own = Sampling("mar", full=12, local=4, plain=3)

    def shape(**grouping: Any) -> tuple[int, int, int]:
        schedule = own.schedule(64, **grouping)
        return schedule.full, schedule.local, schedule.plain

    assert shape() == (12, 4, 3)
    assert shape(local=2) == (12, 2, 3)
    assert shape(plain=5) == (12, 4, 5)
    assert shape(local=0) == (12, 0, 12)
    assert shape(full=None, total=None) == (12, 4, 3)
    assert shape(full=9) == (9, 0, 9)
    assert shape(full=9, local=3)[:2] == (9, 3)
    assert sum(shape(total=10, plain=10)[:2]) == 10


@pytest.mark.parametrize(
    "data",
    [
        FULL,
        *({"preset": name} for name in PRESETS),
        {"preset": "mage", "guidance": 1, "choice_temperature": 0, "full": 9},
    ],
)
def test_round_trip(data: dict[str, Any]) -> None:
    sampling = Sampling.from_dict(data)
    assert Sampling.from_dict(sampling.as_dict()) == sampling
    assert data.items() <= sampling.as_dict().items()


BAD: list[dict[str, Any]] = [
    {},
    {"preset": "marr"},
    {"preset": None},
    {"preset": ["mar"]},
    {"preset": "mar", "steps": 3},
    {"guidance": 2.0},
    {"preset": "mar", "guidance": "3"},
    {"preset": "mar", "guidance": [1, 2, 3]},
    {"preset": "mar", "guidance": [1, None]},
    {"preset": "mar", "guidance": ["1", 2]},
    {"preset": "mar", "guidance": float("nan")},
    {"preset": "mar", "guidance": True},
    {"preset": "mar", "guidance": {}},
    {"preset": "mar", "temperature": 0},
    {"preset": "mar", "temperature": "1"},
    {"preset": "mage", "choice_temperature": -1},
    {"preset": "mage", "choice_temperature": [1]},
    {"preset": "mar", "choice_temperature": 1.0},
    {"preset": "mage", "head_steps": [10, 5]},
    {"preset": "mar", "head_steps": 10},
    {"preset": "mar", "head_steps": [10]},
    {"preset": "mar", "head_steps": [10, 1]},
    {"preset": "mar", "head_steps": [10, 5.0]},
    {"preset": "mar", "full": 0},
    {"preset": "mar", "full": 4.0},
    {"preset": "mar", "full": True},
    {"preset": "mar", "full": 4, "local": 5},
    {"preset": "mar", "full": 4, "local": None},
    {"preset": "mar", "full": 4, "plain": 5},
    {"preset": "mar", "local": 5},
    {"preset": "mar", "plain": 5},
]


@pytest.mark.parametrize("data", BAD, ids=str)
def test_nonsense_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"preset|guidance|temperature|head_steps|full|local|plain"):
        Sampling.from_dict(data)
