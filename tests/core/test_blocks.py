"""Blocks of text: Fast-dLLM's ways to decode them are schedules, token for token and evaluation for evaluation."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.core.blocks import blocks
from recap.core.canvas import Known
from recap.core.schedule import Schedule
from recap.core.selection import BlockOrder
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
    canvas = tiny.run(spied, schedule, 1, known=known, selector=BlockOrder(LENGTH))
    return canvas.raster()[0, len(prompt) :].tolist(), evaluations


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
        found, evaluations = ours(net, prompt, blocks(number * LENGTH, LENGTH, cache=mode, threshold=threshold))
        assert (found, evaluations) == published(net, prompt, number, LENGTH, mode, threshold)
        made, possible = made + evaluations.total(), possible + number * LENGTH
    assert possible / LENGTH < made < possible  # sometimes one at a time, sometimes more


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
@pytest.mark.parametrize("mode", MODES)
@torch.inference_mode()
def test_fixed_counts_are_those_of_fast_dllm(mode: str | None, steps: int) -> None:
    for net, number, prompt in texts():
        schedule = blocks(number * LENGTH, LENGTH, steps=steps * number, cache=mode)
        found, evaluations = ours(net, prompt, schedule)
        assert (found, evaluations) == published(net, prompt, number, steps, mode, None)
        assert evaluations == Counter(full=schedule.full, local=schedule.local)


@torch.inference_mode()
def test_prefix_and_dual_differ_where_something_is_behind_a_block() -> None:
    """Otherwise their equality with the published ones would say little."""
    differ = {1: False, 4: False}
    for net, number, prompt in texts():
        if number in differ:
            made = [ours(net, prompt, blocks(number * LENGTH, LENGTH, cache=mode))[0] for mode in MODES[1:]]
            differ[number] |= made[0] != made[1]
    assert differ == {1: False, 4: True}


def test_equal_confidences_are_taken_from_left_to_right() -> None:
    net = Reader(0).eval()
    nn.init.zeros_(net.logits.weight)
    for mode in MODES:
        schedule = blocks(2 * LENGTH, LENGTH, cache=mode)
        canvas = tiny.run(wrapped(net, 2 * LENGTH), schedule, 1, selector=BlockOrder(LENGTH))
        assert canvas.order[0].tolist() == list(range(2 * LENGTH))


def test_the_last_block_may_be_short_and_a_block_has_no_more_steps_than_tokens() -> None:
    schedule = blocks(14, 6, steps=12, cache="dual")
    assert [group.sizes for group in schedule] == [(2, 2, 1, 1), (2, 2, 1, 1), (1, 1)]
    assert [group.after for group in blocks(14, 6, steps=3, cache="prefix")] == [8, 2, 0]
    assert str(blocks(256, 32, cache="dual")) == "8+248"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"steps": 7}, "7 steps are not shared equally by 2 blocks; use a multiple of 2"),
        ({"steps": 0}, "steps is 0"),
        ({"length": 0}, "length is 0"),
        ({"cache": "both"}, "cache is 'both'; it must be one of prefix, dual"),
        ({"threshold": 1.5}, "threshold is 1.5"),
    ],
)
def test_what_makes_no_blocks_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        blocks(**{"tokens": 12, "length": 6} | given)
