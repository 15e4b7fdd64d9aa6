"""LLaDA, Dream and Fast-dLLM, token for token and evaluation for evaluation, as their own code writes.

What their code does lies in `text_golden.json`, made by benchmarks/text_parity.py.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.core.blocks import dream_counts, text
from recap.core.canvas import Canvas, Draw, Known
from recap.core.decode import grouped_decode
from recap.core.noise import DRAW_BITS, POSITION_BITS, Noise, PositionNoise
from recap.core.presets import preset
from recap.core.protocols import Selector
from recap.core.schedule import Schedule
from recap.core.selection import ConfidenceOrder, InformedOrder
from recap.core.steps import Group, Step
from recap.models.registry import build
from recap.models.text import FAMILY, TextAdapter
from recap.models.text.official import clean, published_config
from tests import tiny
from tests.models.text_weights import CONFIGS, MASK, tensors

GOLDEN = json.loads((Path(__file__).parent / "text_golden.json").read_text())
Case = dict[str, Any]


@cache
def adapter(kind: str) -> TextAdapter:
    """A network of ours with the official tensors of a kind."""
    config = published_config(CONFIGS[kind])
    assert config is not None
    net = build(config, meta=True)
    net.load_state_dict(clean(tensors(kind)), strict=True, assign=True)
    return FAMILY.adapter(net)  # type: ignore[return-value]


def scene(case: Case, length: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The prompts with `length` masks behind them; what fills them up stands at the end. And the lengths."""
    rows, mask = case["prompt" if "prompt" in case else "ids"], case["attention_mask"]
    kept = [
        [t for t, keep in zip(r, m, strict=True) if keep]
        for r, m in zip(rows, mask or [[1] * len(r) for r in rows], strict=True)
    ]
    whole = max(map(len, kept)) + length
    ids = torch.zeros(len(kept), whole, dtype=torch.long)
    for row, text_ids in zip(ids, kept, strict=True):
        row[: len(text_ids) + length] = torch.tensor([*text_ids, *[MASK] * length])
    lengths = torch.tensor([len(text_ids) + length for text_ids in kept])
    masked = (ids == MASK) & (torch.arange(whole) < lengths[:, None])
    return ids, masked, lengths


def rows_of(ids: Tensor, lengths: Tensor) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]


def expected(case: Case) -> list[list[int]]:
    mask = case["attention_mask"]
    left_out = [0] * len(case["output"]) if mask is None else [row.count(0) for row in mask]
    return [row[cut:] for row, cut in zip(case["output"], left_out, strict=True)]


def evaluations(case: Case) -> list[int]:
    """Rows of those evaluations of theirs that filled anything: the others change nothing, and are not made here."""
    filled = {number for row in case["filled"] for number in row}
    return [rows for number, rows in enumerate(case["rows"]) if number in filled]


def written(case: Case, length: int, schedule: Schedule, selector: Selector) -> tuple[list[list[int]], list[str]]:
    ids, masked, lengths = scene(case, length)
    model, made = adapter(case["network"]).at(ids.shape[1]), list[str]()
    spied = tiny.Spied(model, lambda kind, _: made.append(kind))
    known = Known(ids, masked)
    padded = lengths if bool((lengths != ids.shape[1]).any()) else None
    noise = Noise([1] * len(ids), "cpu")
    canvas = last(grouped_decode(spied, padded, schedule, selector, noise, known))
    return rows_of(canvas.raster(), lengths), made


def last(canvases: Iterator[Canvas]) -> Canvas:
    *_, canvas = canvases
    return canvas


def named(code: str) -> list[Any]:
    runs = [run for run in GOLDEN["runs"] if run["code"] == code]
    assert runs
    return [pytest.param(run, id=run["name"]) for run in runs]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in GOLDEN["forwards"]])
def test_logits_are_those_of_the_official_code(case: Case) -> None:
    ids, _, lengths = scene(case)
    model = adapter(case["network"])
    seen = torch.arange(ids.shape[1]) < lengths[:, None]
    logits = model.module(ids, None if case["attention_mask"] is None else seen)
    mask = case["attention_mask"] or [[1] * len(row) for row in case["ids"]]
    for ours, row_mask, theirs in zip(logits, mask, case["logits"], strict=True):
        for place, row in zip(case["rows"], theirs, strict=True):
            torch.testing.assert_close(ours[sum(row_mask[:place])], torch.tensor(row), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("case", named("LLaDA"))
def test_llada_writes_the_same(case: Case) -> None:
    s = case["settings"]
    length, block = s["gen_length"], s["block_length"]
    guidance = 1 + s.get("cfg_scale", 0.0)
    _, masked, _ = scene(case, length)
    ahead, known = int(masked[0].sum()) - length, int((~masked[0]).sum())
    schedule = preset("llada", length, full=s["steps"], block=block, guidance=guidance, ahead=ahead, known=known)
    if ahead:  # a mask of the prompt takes the place of another, which is never written there
        schedule = replace(schedule, groups=(*schedule.groups, Group((Step(ahead, temperature=0.0),))))
    found, made = written(case, length, schedule, ConfidenceOrder())
    for ours, theirs in zip(found, expected(case), strict=True):
        assert theirs.count(MASK) == ahead
        assert [a for a, b in zip(ours, theirs, strict=True) if b != MASK] == [b for b in theirs if b != MASK]
    assert made == ["full"] * (s["steps"] + bool(ahead))
    assert len(case["rows"]) == s["steps"]


@pytest.mark.parametrize("case", named("Fast-dLLM for LLaDA"))
def test_fast_dllm_writes_the_same_in_as_many_evaluations(case: Case) -> None:
    s = case["settings"]
    length, blocks, threshold = s["gen_length"], s["gen_length"] // s["block_length"], s.get("threshold")
    steps = s["steps"] if threshold is None else length
    known = len(case["prompt"][0])
    if s["mode"] == "plain":
        schedule = preset("llada", length, full=steps, block=s["block_length"], threshold=threshold, known=known)
    else:
        name = f"fast-dllm-{s['mode']}"
        schedule = preset(name, length, full=blocks, local=steps - blocks, threshold=threshold, known=known)
    found, made = written(case, length, schedule, InformedOrder())
    assert found == expected(case)
    whole = known + length
    assert made == ["full" if rows == whole else "local" for rows in evaluations(case)]


class AsTopK(ConfidenceOrder):
    """Ties broken as their call of torch.topk breaks them, which promises nothing: over all positions of a text."""

    def __init__(self, size: int) -> None:
        self.size = size

    def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
        assert draw.confidence is not None
        positions = ((noise.first - (noise.first >> DRAW_BITS << DRAW_BITS)) >> POSITION_BITS).long()
        everywhere = torch.full((len(positions), self.size), -torch.inf).scatter(1, positions, draw.confidence)
        first = everywhere.topk(step.tokens).indices
        chosen = (positions[:, None, :] == first[:, :, None]).long().argmax(-1)  # (B, n) among the candidates
        others = super().rank(draw, step, noise)
        rest = [
            [i for i in row.tolist() if i not in taken] for row, taken in zip(others, chosen.tolist(), strict=True)
        ]
        return torch.cat([chosen, torch.tensor(rest, dtype=torch.long).view(len(rest), -1)], dim=1)


@pytest.mark.parametrize("case", named("Dream"))
def test_dream_writes_the_same(case: Case) -> None:
    s = case["settings"]
    confidence = {"maskgit_plus": "tempered", "topk_margin": "margin", "entropy": "entropy"}[s["alg"]]
    _, masked, _ = scene(case, s["max_new_tokens"])
    count = int(masked[0].sum())
    schedule = preset(
        "dream", count, full=s["steps"], counts=partial(dream_counts, eps=s["eps"]), confidence=confidence,
        top_k=s.get("top_k"), top_p=s.get("top_p"), known=masked.shape[1] - count,
    )  # fmt: skip
    # many confidences are exactly 1 where one id alone passes top_p: torch.topk says which of them come first
    selector = AsTopK(masked.shape[1]) if s.get("top_p") else ConfidenceOrder()
    found, made = written(case, s["max_new_tokens"], schedule, selector)
    assert found == expected(case)
    assert len(made) == len(evaluations(case))


@pytest.mark.parametrize("case", named("Fast-dLLM for Dream"))
def test_fast_dllm_on_dream_writes_the_same(case: Case) -> None:
    s = case["settings"]
    length, blocks, threshold = s["max_new_tokens"], s["max_new_tokens"] // s["block_length"], s.get("threshold")
    steps = s["steps"] if threshold is None else length
    known = len(case["prompt"][0])
    name = f"fast-dream-{'dual' if s['dual_cache'] else 'prefix'}"
    make = partial(preset, name, length, full=blocks, local=steps - blocks, threshold=threshold, known=known)
    if steps == blocks:  # their code leaves all but one token of a block unwritten
        assert expected(case)[0].count(MASK) == length - blocks
        with pytest.raises(ValueError, match="one step takes one token here"):
            make()
        return
    found, made = written(case, length, make(), InformedOrder())
    assert found == expected(case)
    whole = known + length
    assert made == ["full" if rows == whole else "local" for rows in evaluations(case)]


def test_a_schedule_of_text_says_what_it_is() -> None:
    assert str(text(256, full=8, local=248, block=32)) == "8+248"
