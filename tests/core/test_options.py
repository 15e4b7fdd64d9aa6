"""One request: what it says, how it is written, what it refuses, and the schedule that it becomes."""

import argparse
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap import Ramp, SamplingOptions, preset
from recap.core.orders import ORDERS
from recap.core.presets import DIFFUSION, PRESETS, TEXT, mage, mar, maskgit, maskgit_r
from recap.core.steps import SOLVERS

FULL: dict[str, Any] = {
    "preset": "mar",
    "guidance": [1.0, 2.5],
    "temperature": 0.9,
    "full": 12,
    "local": 4,
    "warmup": 6,
    "head_steps": [40, 20],
}


@st.composite
def options(draw: Any) -> SamplingOptions:
    """Any request that makes sense."""
    values: dict[str, Any] = {}

    def maybe(name: str, strategy: Any) -> None:
        values[name] = draw(st.none() | strategy)

    number = st.floats(0.01, 100, allow_nan=False)
    maybe("preset", st.sampled_from(sorted(PRESETS)))
    maybe("full", st.integers(1, 99))
    maybe("chain", st.integers(1, 4))
    room = (values["full"] or 99) * (values["chain"] or 1)
    maybe("local", st.integers(0, room))
    maybe("warmup", st.integers(0, values["full"] or 99))
    maybe("guidance", number | st.builds(Ramp, number, number))
    maybe("temperature", number)
    if values["preset"] not in DIFFUSION:
        maybe("choice_temperature", number | st.just(0.0))
    if values["preset"] in (None, *DIFFUSION):
        maybe("head_steps", st.tuples(st.integers(2, 200), st.integers(2, 200)))
        maybe("solver", st.sampled_from(SOLVERS))
    maybe("order", st.sampled_from(sorted(ORDERS)))
    return SamplingOptions(**values)


@given(options())
def test_text_and_json_are_read_back(given: SamplingOptions) -> None:
    assert SamplingOptions.from_json(given.json()) == given
    back = SamplingOptions.from_text(given.text)
    assert back.override(SamplingOptions()) == back
    if given.full is None or given.local is not None:
        assert back == given
    else:  # T is T+0
        assert back.json() == {**given.json(), "local": 0}
    assert SamplingOptions.from_text(back.text) == back


def test_text_says_what_was_meant() -> None:
    given = SamplingOptions.from_text(" 48+16 : warmup=32, guidance=1/3,head_steps=100/50 ")
    assert given == SamplingOptions(full=48, local=16, warmup=32, guidance=Ramp(1, 3), head_steps=(100, 50))
    assert str(given) == "48+16:warmup=32,guidance=1/3,head_steps=100/50"
    assert SamplingOptions.from_text("64") == SamplingOptions(full=64, local=0)
    assert SamplingOptions.from_text(":head_steps=30") == SamplingOptions(head_steps=(30, 30))
    assert SamplingOptions.from_text(":local=3") == SamplingOptions(local=3)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "x",
            "48+",
            "+16",
            "48-16",
            "48:u=3",
            "48:warmup",
            "48:warmup=x",
            "48:warmup=1,warmup=2",
            "0",
            "4+9:chain=2",
        ),
        *("48:guidance=1/2/3", "48:solver=euler", "48:order=raster", "4:warmup=5", "4:local=2", "48:plain=3"),
    ],
)
def test_unreadable_text_is_refused_with_what_came(text: str) -> None:
    with pytest.raises(ValueError, match="schedule") as caught:
        SamplingOptions.from_text(text)
    assert repr(text) in str(caught.value)


def test_arguments_join_the_text() -> None:
    def read(**given: Any) -> SamplingOptions:
        return SamplingOptions.from_args(argparse.Namespace(**given, other=3))

    assert read(schedule="48+16", temperature=0.9).text == "48+16:temperature=0.9"
    assert read(full=8, local=None) == SamplingOptions(full=8)
    assert read() == SamplingOptions()
    with pytest.raises(ValueError, match=r"--schedule 48\+16 says full already"):
        read(schedule="48+16", full=3)
    with pytest.raises(ValueError, match="leave --choice-temperature"):
        read(schedule="48:choice_temperature=3", choice_temperature=2.0)


@pytest.mark.parametrize("name", PRESETS)
def test_a_bare_preset_is_the_published_one(name: str) -> None:
    for tokens, full, local in ((256, 64, 64), (64, 16, 16)) if name in TEXT else ((256, 48, 16), (64, 20, 7)):
        given = SamplingOptions(name, full, local)
        assert given.schedule(tokens) == preset(name, tokens, full=full, local=local)
    full, local = {"text": (64, 192), "llada": (256, 0), "dream": (256, 0), "informed": (64, 192)}.get(name, (48, 16))
    if name.startswith("fast-"):
        full, local = 8, 248
    assert SamplingOptions(name).schedule() == preset(name, full=full, local=local)


def test_what_is_said_reaches_every_step() -> None:
    steps = SamplingOptions.from_json(FULL).schedule(64).steps
    assert len(steps) == 16
    assert {step.temperature for step in steps} == {0.9}
    assert {step.head_steps for step in steps} == {40, 20}
    assert 1.0 < steps[0].guidance < steps[-1].guidance == 2.5
    for name in ("maskgit", "maskgit-r", "mage"):
        own = SamplingOptions(name, 10, 4, temperature=0.7, choice_temperature=3.0, guidance=2.0)
        steps = own.schedule(64).steps
        assert {step.temperature for step in steps} == {0.7}
        assert {step.guidance for step in steps} == {2.0}
        assert steps[0].choice_temperature == pytest.approx(3.0 * 0.9)
    assert {step.solver for step in SamplingOptions("mar", 8, solver="ddim").schedule(64).steps} == {"ddim"}


def test_presets_keep_their_defaults() -> None:
    for make in (maskgit, maskgit_r, mage):
        usual = make(full=20)
        assert make(full=20, temperature=0.5).sizes == usual.sizes
        assert make(full=20, temperature=0.5, choice_temperature=1.0) != usual
    assert mar(full=20) == preset("mar-large", full=20)
    assert maskgit(full=20).steps[0].choice_temperature == pytest.approx(4.5 * 0.95)


def test_one_number_of_guidance_means_what_it_does_in_the_family() -> None:
    assert SamplingOptions("mar", 8, guidance=3.0).schedule() == mar(guidance=Ramp(1.0, 3.0), full=8)
    assert {s.guidance for s in SamplingOptions("maskgit", 8, guidance=3.0).schedule().steps} == {3.0}
    assert not SamplingOptions("mar", 8, guidance=1.0).schedule().guided


def test_options_lie_over_a_models_own() -> None:
    own = SamplingOptions("mar", 12, 4, warmup=3, temperature=0.9)

    def shape(**given: Any) -> tuple[int, int, int]:
        schedule = own.override(SamplingOptions(**given)).schedule(64)
        return schedule.full, schedule.local, schedule.warmup

    assert shape() == (12, 4, 3)
    assert shape(local=2) == (12, 2, 3)
    assert shape(warmup=5) == (12, 4, 5)
    assert shape(local=0) == (12, 0, 12)
    assert shape(full=9) == (9, 0, 9)
    assert shape(full=9, local=3)[:2] == (9, 3)
    other = own.override(SamplingOptions("mage"))
    assert other == SamplingOptions("mage", 12, 4, warmup=3)  # the rest belonged to the other preset
    assert own.override(SamplingOptions("mar")) == own
    assert own.plain() == SamplingOptions("mar", 16, 0, temperature=0.9)


@given(full=st.integers(1, 128), local=st.integers(0, 128), chain=st.integers(1, 3), tokens=st.integers(1, 256))
def test_evaluations_shrink_with_the_share_that_is_left(full: int, local: int, chain: int, tokens: int) -> None:
    own = SamplingOptions("maskgit", full, min(local, full * chain), chain=chain)
    schedule = own.shrunk(tokens, 256 - tokens).schedule(tokens, 256 - tokens)
    assert (schedule.tokens, schedule.known) == (tokens, 256 - tokens)
    assert schedule.full == min(math.ceil(full * tokens / 256), tokens)
    assert schedule.local <= max(1, own.local or 0)
    if tokens == 256:
        assert (schedule.full, schedule.local) == (full, own.local)


WRONG: dict[str, list[Any]] = {  # values that MAR cannot have
    "steps": [3],
    "guidance": ["3", [1, 2, 3], [1, None], ["1", 2], float("nan"), True, {}],
    "temperature": [-1, "1"],
    "choice_temperature": [1.0, -1, [1]],
    "head_steps": [10, [10], [10, 1], [10, 5.0]],
    "solver": ["dpm"],
    "order": ["raster"],
    "full": [0, 4.0, True],
    "chain": [0],
    "warmup": [-1],
}
BAD: list[dict[str, Any]] = [
    *({"preset": "mar", name: value} for name, values in WRONG.items() for value in values),
    *({"preset": preset} for preset in ("marr", ["mar"])),
    *(
        {"preset": "mage", **more}
        for more in ({"head_steps": [10, 5]}, {"solver": "ddim"}, {"choice_temperature": -1})
    ),
    *(
        {"full": 4, **more}
        for more in ({"local": 5, "chain": 1}, {"local": 9, "chain": 2}, {"local": 1.0}, {"warmup": 5})
    ),
]


@pytest.mark.parametrize("data", BAD, ids=str)
def test_nonsense_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"preset|guidance|temperature|head_steps|solver|order|full|local|warmup|chain"
    ):
        SamplingOptions.from_json(data)


def test_a_schedule_needs_a_preset() -> None:
    with pytest.raises(ValueError, match="name no preset"):
        SamplingOptions(full=4).schedule()
