"""Blocks of text: Fast-dLLM's ways to decode them are schedules, token for token and evaluation for evaluation."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.core.blocks import dream_counts, led_counts, text
from recap.core.canvas import Draw, Known
from recap.core.noise import DRAW_BITS, POSITION_BITS, PositionNoise
from recap.core.presets import preset
from recap.core.schedule import Schedule
from recap.core.selection import ConfidenceOrder, InformedOrder, ShuffledOrder
from recap.core.steps import Step
from recap.models.adapter import Adapter
from recap.models.described import Description
from recap.models.registry import wrap
from tests import tiny

CODES, MASK, WIDTH, HEADS, LENGTH = 24, 24, 32, 4, 6
MODES = (None, "prefix", "dual")
Rows = list[tuple[Tensor, Tensor]]  # keys and values of each layer, a row for each position


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class Reader(nn.Module):
    """A bidirectional network over words, which is sure of some of them and not of others."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(CODES + 1, WIDTH), nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CODES)
        random = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=1.2 / math.sqrt(WIDTH), generator=random)
        nn.init.normal_(self.words.weight, generator=random)
        nn.init.normal_(self.places.weight, generator=random)
        nn.init.normal_(self.logits.weight, std=8 / math.sqrt(WIDTH), generator=random)


def evaluate(net: Any, ids: list[int], first: int, last: int, cached: Rows | None) -> tuple[Tensor, Rows]:
    """Logits of positions `first` to `last`, and keys and values of all; those of other positions are cached ones."""
    x = net.words(torch.tensor(ids[first:last])) + net.places(torch.arange(first, last))
    rows: Rows = []
    for number, layer in enumerate(net.layers):
        y = layer.norm1(x)
        k, v = layer.k(y), layer.v(y)
        if cached is not None:
            old_k, old_v = cached[number]
            k, v = torch.cat([old_k[:first], k, old_k[last:]]), torch.cat([old_v[:first], v, old_v[last:]])
        rows.append((k, v))
        heads = []
        for q_head, k_head, v_head in zip(*(part.chunk(HEADS, dim=-1) for part in (layer.q(y), k, v)), strict=True):
            weights = (q_head @ k_head.T / math.sqrt(WIDTH / HEADS)).softmax(-1)
            heads.append(weights @ v_head)
        x = x + layer.out(torch.cat(heads, dim=-1))
        x = x + layer.mlp(layer.norm2(x))
    return net.logits(net.norm(x)), rows


def published(
    net: Any, prompt: list[int], number: int, steps: int, mode: str | None, threshold: float | None
) -> tuple[list[int], Counter[str]]:
    """One text of `number` blocks, greedily: LLaDA's loop over blocks under Fast-dLLM's rules."""
    ids = [*prompt, *[MASK] * (number * LENGTH)]
    evaluations: Counter[str] = Counter()
    for start in range(len(prompt), len(ids), LENGTH):
        end, step, cached = start + LENGTH, 0, None
        counts = [LENGTH // steps + (1 if i < LENGTH % steps else 0) for i in range(steps)]
        while MASK in ids[start:end]:
            if mode is None or cached is None:  # all of the text, at the beginning of a block or always
                first, last = 0, len(ids)
                logits, cached = evaluate(net, ids, first, last, None)
                evaluations["full"] += 1
            else:  # what is before the block is never computed again, and with two caches neither what is behind
                first, last = start, end if mode == "dual" else len(ids)
                logits, _ = evaluate(net, ids, first, last, cached)
                evaluations["local"] += 1
            masked = [position for position in range(start, end) if ids[position] == MASK]
            found = {position: logits[position - first].double().softmax(-1).max(-1) for position in masked}
            masked.sort(key=lambda position: -float(found[position].values))
            sure = (
                sum(float(found[position].values) >= threshold for position in masked) if threshold else counts[step]
            )
            for position in masked[: max(1, sure)]:
                ids[position] = int(found[position].indices)
            step += 1
    return ids[len(prompt) :], evaluations


def wrapped(net: Reader, size: int) -> Adapter:
    description = Description(
        num_tokens=size, mask_id=MASK, codes=CODES, heads=HEADS, words="words", positions="places", blocks="layers",
        q="q", k="k", v="v", out="out", mlp="mlp", norm="norm", logits="logits",
    )  # fmt: skip
    return wrap(net, description)


def ours(net: Reader, prompt: list[int], schedule: Schedule) -> tuple[list[int], Counter[str]]:
    size, evaluations = len(prompt) + schedule.tokens, Counter[str]()
    spied = tiny.Spied(wrapped(net, size), lambda kind, _: evaluations.update([kind]))
    tokens = torch.tensor([[*prompt, *[0] * schedule.tokens]])
    known = Known(tokens, torch.arange(size)[None] >= len(prompt)) if prompt else None
    canvas = tiny.run(spied, schedule, 1, known=known, selector=InformedOrder())
    return canvas.raster()[0, len(prompt) :].tolist(), evaluations


def blocks(number: int, mode: str | None, steps: int = LENGTH, threshold: float | None = None) -> Schedule:
    """So many blocks, each in so many steps."""
    tokens = number * LENGTH
    options: dict[str, Any] = {"threshold": threshold}
    if mode is None:
        return preset("llada", tokens, full=number * steps, block=LENGTH, **options)
    return preset(f"fast-dllm-{mode}", tokens, full=number, local=number * (steps - 1), **options)


def texts() -> Iterator[tuple[Reader, int, list[int]]]:
    """Networks, numbers of blocks and prompts."""
    prompts: list[list[int]] = [[], [5, 1, 9], [3, 3, 8, 20, 0, 11, 2]]
    for seed, (number, prompt) in enumerate(product(range(1, 5), prompts)):
        yield Reader(seed).eval(), number, prompt


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9, 0.95])
@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_thresholds_commit_what_those_of_fast_dllm_do(mode: str | None, threshold: float) -> None:
    made = possible = 0
    for net, number, prompt in texts():
        found, evaluations = ours(net, prompt, blocks(number, mode, threshold=threshold))
        assert (found, evaluations) == published(net, prompt, number, LENGTH, mode, threshold)
        made, possible = made + evaluations.total(), possible + number * LENGTH
    assert possible / LENGTH < made < possible  # sometimes one at a time, sometimes more


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_fixed_counts_are_those_of_fast_dllm(mode: str | None, steps: int) -> None:
    for net, number, prompt in texts():
        schedule = blocks(number, mode, steps)
        found, evaluations = ours(net, prompt, schedule)
        assert (found, evaluations) == published(net, prompt, number, steps, mode, None)
        assert evaluations == Counter(full=schedule.full, local=schedule.local)


@torch.inference_mode()
def test_prefix_and_dual_differ_where_something_is_behind_a_block() -> None:
    """Otherwise their equality with the published ones would say little."""
    differ = dict.fromkeys(range(1, 5), False)
    for net, number, prompt in texts():
        made = [ours(net, prompt, blocks(number, mode))[0] for mode in MODES[1:]]
        differ[number] |= made[0] != made[1]
    assert not differ.pop(1)
    assert any(differ.values())


def test_equal_confidences_are_taken_from_left_to_right() -> None:
    net = Reader(0).eval()
    nn.init.zeros_(net.logits.weight)
    for mode in MODES:
        schedule = blocks(2, mode)
        canvas = tiny.run(wrapped(net, 2 * LENGTH), schedule, 1, selector=InformedOrder())
        assert canvas.order[0].tolist() == list(range(2 * LENGTH))


@torch.inference_mode()
def test_ties_go_to_the_leftmost_position_whatever_was_ranked_before() -> None:
    """A first ranking moves rows, and a later tie must not fall to where they lie by then."""
    net = Reader(3).eval()
    step = replace(preset("llada", 12, full=12).groups[0].steps[0])
    surer = torch.zeros(12)
    surer[7] = 1.0

    class Flat(ConfidenceOrder):
        def rank(self, draw: Draw, step: Step, noise: PositionNoise) -> Tensor:
            places = (noise.first >> POSITION_BITS) & ((1 << DRAW_BITS - POSITION_BITS) - 1)
            return super().rank(Draw(draw.values, surer[places]), step, noise)

    canvas = tiny.run(wrapped(net, 12), text(12, full=12, temperature=step.temperature), 1, selector=Flat())
    assert canvas.order[0].tolist() == [7, *range(7), *range(8, 12)]


def test_blocks_share_steps_and_tokens() -> None:
    schedule = text(12, full=2, local=6, block=6)
    assert [group.sizes for group in schedule] == [(2, 2, 1, 1), (2, 2, 1, 1)]
    assert [step.until for step in schedule.steps] == [6] * 4 + [12] * 4
    assert [group.after for group in text(12, full=2, local=6, block=6, rows="rest")] == [12, 12]
    assert str(preset("fast-dllm-dual", 256, full=8, local=248)) == "8+248"
    inside = text(16, full=4, local=4, block=8, rows="block")
    assert [(g.before, g.after, g.tokens) for g in inside] == [(0, 4, 4), (4, 0, 4)] * 2
    chains = text(64, full=4, local=28, chain=14, warmup=2)
    assert [group.local for group in chains] == [0, 0, 14, 14]
    assert [group.local for group in text(64, full=16, local=48)] == [3] * 16


def test_target_sets_end_with_their_block() -> None:
    schedule = text(16, full=4, local=4, block=8, target=2.0)
    assert [group.rows for group in schedule] == [8, 4] * 2


@pytest.mark.parametrize(("tokens", "steps", "eps"), [(16, 16, 1e-3), (16, 6, 1e-3), (24, 8, 1e-3), (16, 8, 0.1)])
def test_dreams_counts(tokens: int, steps: int, eps: float) -> None:
    known = {
        (16, 16, 1e-3): [1] * 14 + [2],
        (16, 6, 1e-3): [2, 2, 2, 3, 3, 4],
        (24, 8, 1e-3): [2, 3, 3, 3, 3, 3, 3, 4],
        (16, 8, 0.1): [1, 1, 2, 2, 2, 2, 2, 4],
    }
    assert dream_counts(tokens, steps, eps) == known[tokens, steps, eps]
    assert led_counts(8, 8) == [1, 1, 1, 1, 1, 1, 2]
    assert led_counts(8, 4) == [1, 2, 2, 3]


def test_a_random_order_stays_in_its_block_and_is_random() -> None:
    net = Reader(0).eval()
    canvas = tiny.run(wrapped(net, 18), text(18, full=9, block=6), 40, selector=ShuffledOrder())
    blocks_of = (canvas.order // 6).tolist()
    assert all(row == sorted(row) for row in blocks_of)
    first = Counter(canvas.order[:, 0].tolist())
    assert set(first) == set(range(6))
    assert max(first.values()) < 20


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"full": 7}, "7 full evaluations are not shared equally by 2 blocks of 6 tokens; use a multiple of 2"),
        ({"full": 0}, "full is 0"),
        ({"block": 5}, "12 tokens do not divide into blocks of 5"),
        ({"rows": "both"}, "rows is 'both'; it must be one of target, block, rest"),
        ({"full": 14}, "14 steps have no room in 12 tokens"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": 0.5, "confidence": "entropy"}, "leave it out"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"confidence": "great"}, "confidence is 'great'"),
    ],
)
def test_what_makes_no_blocks_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        text(12, **{"full": 2, "block": 6} | given)
