"""Predicted costs against the figures worked out for the paper's tables."""

import pytest
import torch

from recap.core.costs import run_cost
from recap.core.presets import PAPER_ROWS, preset
from recap.core.schedule import cosine
from recap.models.registry import SIZES
from recap.planning.plan import Plan, paper_plans, plan, table
from tests import tiny

PLANS = {(p.model, p.schedule.full, p.schedule.local): p for p in paper_plans()}


def within(value: float, printed: str) -> bool:
    """Within 1 % of a printed figure, whose last digit is rounded."""
    digits = len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.01 * float(printed) + 0.5 * 10**-digits


@pytest.mark.parametrize(
    ("pair", "share", "plain", "reused", "speedup"),
    [
        ((8, 8), ".125", "1.664", "0.936", "1.779"),
        ((12, 4), ".204", "1.664", "1.333", "1.248"),
        ((15, 5), ".163", "2.080", "1.645", "1.264"),
        ((16, 8), ".116", "2.496", "1.761", "1.418"),
        ((22, 10), ".091", "3.328", "2.382", "1.397"),
        ((20, 20), ".050", None, None, "1.905"),
        ((25, 25), ".040", None, None, "1.924"),
        ((30, 30), ".033", None, None, "1.936"),
        ((35, 35), ".028", None, None, "1.945"),
        ((40, 40), ".025", None, None, "1.952"),
        ((50, 50), ".020", None, None, "1.961"),
        ((80, 48), ".013", None, None, "1.588"),
    ],
)
def test_maskgit_and_mage_rows(
    pair: tuple[int, int], share: str, plain: str | None, reused: str | None, speedup: str
) -> None:
    p = PLANS["mage-large" if plain is None else "maskgit-large", *pair]
    assert within(p.local_share, share)
    assert within(p.speedup, speedup)
    if plain is not None and reused is not None:
        assert within(p.plain_cost.total / 1e12, plain)
        assert within(p.cost.total / 1e12, reused)


@pytest.mark.parametrize(
    ("model", "pair", "transformer", "head", "gains", "against_256"),
    [
        ("mar-large", (72, 24), "27.8", "6.09", ("1.389", "1.213", "1.357"), "3.47"),
        ("mar-large", (64, 20), "24.9", "6.18", ("1.358", "1.196", "1.326"), "3.80"),
        ("mar-large", (20, 8), "7.82", "5.96", ("1.428", "1.240", "1.347"), "8.56"),
        ("mar-huge", (96, 32), "72.2", "12.78", ("1.388", "1.210", "1.362"), "2.70"),
        ("mar-huge", (36, 12), "27.0", "12.69", ("1.380", "1.219", "1.328"), "5.78"),
    ],
)
def test_mar_rows(
    model: str, pair: tuple[int, int], transformer: str, head: str, gains: tuple[str, str, str], against_256: str
) -> None:
    p = PLANS[model, *pair]
    assert within(p.cost.transformer / 1e12, transformer)
    assert within(p.cost.head / 1e12, head)
    assert within(p.plain_cost.transformer / p.cost.transformer, gains[0])
    assert within(p.plain_cost.head / p.cost.head, gains[1])
    assert within(p.speedup, gains[2])
    longest = run_cost(SIZES[model], preset(model, full=256))
    assert within(longest.total / p.cost.total, against_256)


@pytest.mark.parametrize(
    ("model", "steps", "transformer", "head"),
    [
        ("mar-large", 256, "110.5", "7.39"),
        ("mar-large", 128, "51.8", "7.39"),
        ("mar-large", 64, "25.7", "7.39"),
        ("mar-large", 20, "7.94", "7.39"),
        ("mar-huge", 256, "213.9", "15.47"),
        ("mar-huge", 128, "100.3", "15.47"),
        ("mar-huge", 48, "37.2", "15.47"),
    ],
)
def test_plain_mar_runs(model: str, steps: int, transformer: str, head: str) -> None:
    schedule = preset(model, full=steps)
    cost = run_cost(SIZES[model], schedule)
    assert within(cost.transformer / 1e12, transformer)
    assert within(cost.head / 1e12, head)
    assert cost == run_cost(SIZES[model], schedule.plain())


def test_full_evaluations_of_mar_by_context() -> None:
    for name, figures in {
        "mar-base": (69, 92, 117),
        "mar-large": (162, 216, 271),
        "mar-huge": (313, 418, 525),
    }.items():
        for decoded, giga in zip((0, 128, 255), figures, strict=True):
            assert SIZES[name].full_flops(decoded) / 1e9 == pytest.approx(giga, abs=0.6)


def test_cache_bytes_of_the_published_sizes() -> None:
    assert PLANS["maskgit-large", 22, 10].cache_bytes == 25 * 2 * 257 * 768 * 4
    assert PLANS["mage-large", 50, 50].cache_bytes == (32 * 2 * 257 * 1024 + 1024) * 4
    most = 2 * (16 * 2 * 320 * 1024 + 16 * 2 * 319 * 1024) * 4
    assert 0.95 * most < PLANS["mar-large", 72, 24].cache_bytes <= most
    half = plan("mar-large", SIZES["mar-large"], preset("mar-large", full=72, local=24), dtype=torch.float16)
    assert 2 * half.cache_bytes == PLANS["mar-large", 72, 24].cache_bytes


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_predicted_cache_is_the_allocated_one(family: str) -> None:
    adapter = tiny.model(family)
    for chain in (1, 3):
        guidance = 2.0 if adapter.guidable else 1.0
        schedule = cosine(16, full=3, local=chain * 2, chain=chain, guidance=guidance)
        canvas = tiny.canvas(adapter, batch=3)
        predicted = plan(family, tiny.CONFIGS[family], schedule).cache_bytes
        assert adapter.new_cache(canvas, schedule).nbytes == 3 * predicted


def test_plans_tell_everything() -> None:
    assert [(p.schedule.full, p.schedule.local) for p in paper_plans()] == [(r.full, r.local) for r in PAPER_ROWS]
    row = PLANS["mar-huge", 96, 32].as_dict()
    assert row["warmup"] == 64
    assert sum(row["tokens"]) == 256
    assert [n for group in row["groups"] for n in group] == row["tokens"]
    assert row["flops"] == row["flops_full"] + row["flops_local"] + row["flops_head"]
    lines = table(paper_plans()).splitlines()
    assert len(lines) == 2 + len(PAPER_ROWS)
    assert len({len(line) for line in lines}) == 1


def test_plain_decoding_gains_and_caches_nothing() -> None:
    p = plan("mar-base", SIZES["mar-base"], preset("mar-base", full=16))
    assert isinstance(p, Plan)
    assert p.speedup == 1.0
    assert p.cache_bytes == 0
    assert p.local_share == 0.0


def test_schedules_for_other_token_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="64 tokens"):
        plan("mar-base", SIZES["mar-base"], cosine(64, full=4))
