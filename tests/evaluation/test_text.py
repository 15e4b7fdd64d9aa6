"""Judges of text that need no other network: entropy, n-grams, the bound on the likelihood, agreement."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.core.blocks import text
from recap.core.canvas import Known
from recap.core.heads import CategoricalHead
from recap.core.schedule import cosine
from recap.core.selection import InformedOrder
from recap.evaluation.error import ErrorLog, evaluation_error, local_error
from recap.evaluation.text import distinct_ngrams, likelihood_bound, token_agreement, unigram_entropy
from recap.models.adapter import Adapter
from recap.models.registry import adapt, build, randomize
from recap.models.text import TextConfig
from recap.pipelines.text import TextPipeline
from tests import tiny

CODES, MASK, LENGTH = 12, 11, 16
WORDS = ["the cat and the dog and the cow", "a b c d e f g h"]


def model(**changes: Any) -> Adapter:
    sizes: dict[str, Any] = {"width": 32, "depth": 3, "heads": 4, "kv_heads": 2, "hidden": 48, "codes": CODES}
    sizes |= {"num_tokens": LENGTH, "mask_id": MASK, "eos_id": 0, **changes}
    net = randomize(build(TextConfig(**sizes)))
    with torch.no_grad():  # sure of some tokens and in doubt about others, and most of all for the mask
        head = net.get_parameter("lm_head.weight")
        head.mul_(8)
        head[MASK].zero_()
    return adapt(net)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(length: int, seed: int = 1) -> Tensor:
    return torch.randint(MASK, (length,), generator=random(seed))


def test_entropy_and_ngrams_by_hand() -> None:
    assert unigram_entropy([[3, 3, 4, 4]]).mean == pytest.approx(math.log(2))
    assert unigram_entropy([[7, 7, 7]]).mean == 0
    first = -(3 / 8 * math.log(3 / 8) + 1 / 4 * math.log(1 / 4) + 3 / 8 * math.log(1 / 8))
    found = unigram_entropy(WORDS)
    assert found.mean == pytest.approx((first + math.log(8)) / 2)
    assert found.error == pytest.approx((math.log(8) - first) / 2)  # of two values: half of what lies between them
    repeated = list(torch.tensor([[1, 2, 1, 2], [5, 5, 5, 5]]))
    assert distinct_ngrams(repeated, 1) == pytest.approx((3 / 8, 1 / 8))
    assert distinct_ngrams(repeated, 2) == pytest.approx((1 / 2, 1 / 6))
    assert distinct_ngrams([[1, 2, 1, 2]], 3).mean == 1
    assert math.isnan(distinct_ngrams([[1, 2, 1, 2]], 3).error)


def test_entropy_is_that_of_words_whatever_stands_for_them() -> None:
    numbers = {word: number for number, word in enumerate(sorted({word for line in WORDS for word in line.split()}))}
    listed = [[numbers[word] for word in line.split()] for line in WORDS]
    assert unigram_entropy(listed) == unigram_entropy(WORDS) == unigram_entropy([torch.tensor(row) for row in listed])


def test_no_texts_and_short_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="text 1 has 2 tokens, but 3 make one 3-gram"):
        distinct_ngrams(["a b c", "a b"], 3)
    with pytest.raises(ValueError, match="n is 0"):
        distinct_ngrams(["a b c"], 0)
    nothing: Any
    for nothing in ("a text alone", [], [[]]):
        with pytest.raises(ValueError, match="text"):
            unigram_entropy(nothing)


@pytest.mark.parametrize("shift", [False, True])
@torch.inference_mode()
def test_bound_is_the_mean_over_all_sets_of_masked_tokens(shift: bool) -> None:
    adapter, row = model(num_tokens=4, shift=shift), ids(4)
    exact = 0.0
    for k in range(1, 5):
        sets = list(combinations(range(4), k))
        for places in sets:
            masked = row.clone()
            masked[list(places)] = MASK
            logits = adapter.module(masked[None])[0]
            rows = [max(0, place - 1) for place in places] if shift else list(places)
            shares = logits[rows, :MASK].log_softmax(-1)
            exact -= float(shares[range(k), row[list(places)]].mean()) / len(sets) / 4
    found = likelihood_bound(adapter, row.repeat(40), generator=random(), draws=64, batch=256, size=80)
    assert (found.windows, found.tokens, found.draws) == (40, 4, 64)
    assert 0 < found.nats.error < 0.02 * exact
    assert abs(found.nats.mean - exact) < 4 * found.nats.error
    assert found.bits_per_byte == pytest.approx([x * 2 / math.log(2) for x in found.nats])  # two tokens a byte


@torch.no_grad()
def test_a_model_that_knows_nothing_needs_the_logarithm_of_its_vocabulary_without_the_mask() -> None:
    adapter = model()
    adapter.module.get_parameter("lm_head.weight").zero_()
    found = likelihood_bound(adapter, ids(3 * LENGTH + 5), generator=random(), draws=2)
    assert found.nats == pytest.approx((math.log(CODES - 1), 0), abs=1e-6)
    assert found.windows == 3
    assert found.bits_per_byte is None


def test_bound_depends_on_the_generator_and_not_on_the_batch() -> None:
    adapter, row = model(), ids(10 * LENGTH)
    one, same, other = (
        likelihood_bound(adapter, row, generator=random(seed), windows=5, draws=3, batch=batch).nats
        for seed, batch in ((0, 1), (0, 4), (1, 4))
    )
    assert one == pytest.approx(same, rel=1e-5)
    assert one.mean != pytest.approx(other.mean, rel=1e-3)


def test_bound_of_spread_windows_sees_the_end_of_the_text() -> None:
    adapter = model(num_tokens=4)
    begin, end = ids(4, 2), ids(4, 3)
    of = [
        likelihood_bound(adapter, row, generator=random(), windows=2, draws=512, batch=256).nats.mean
        for row in (begin.repeat(8), torch.cat([begin.repeat(4), end.repeat(4)]), end.repeat(8))
    ]
    assert of[1] == pytest.approx((of[0] + of[2]) / 2, rel=0.03)
    assert abs(of[0] - of[2]) > 0.1 * of[1]


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        (ids(LENGTH - 1), {}, "15 tokens make 0 windows of 16"),
        (ids(LENGTH), {"draws": 0}, "draws=0"),
        (torch.tensor([1, MASK] * LENGTH), {}, "no mask, which is 11"),
        (torch.tensor([1, CODES] * LENGTH), {}, "ids below 12"),
    ],
)
def test_bound_refuses_what_is_no_text(row: Tensor, options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        likelihood_bound(model(), row, generator=random(), **options)


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_bound_is_one_of_language_models(family: str) -> None:
    adapter = tiny.model(family)
    if family == "mage":
        assert likelihood_bound(adapter, ids(64), generator=random()).nats.mean > 0
        return
    with pytest.raises(ValueError, match="give a language model"):
        likelihood_bound(adapter, ids(64), generator=random())


def test_plain_decoding_agrees_with_itself_and_reuse_does_not_wholly() -> None:
    plain = token_agreement(model(), text(LENGTH, full=8), number=3)
    assert plain.equal == (1.0, 0.0)
    assert plain.divergence is None
    assert plain.steps == []
    reused = token_agreement(model(), text(LENGTH, full=2, local=6), number=3)
    assert 0 < reused.equal.mean < 1
    assert reused.divergence is not None
    assert reused.divergence > 1e-4
    assert [step.step for step in reused.steps] == [2, 3, 4, 6, 7, 8]
    assert sum(step.mean * step.tokens for step in reused.steps) / 12 == pytest.approx(reused.divergence)


@pytest.mark.parametrize("shift", [False, True])
def test_in_one_layer_reuse_is_exact(shift: bool) -> None:
    found = token_agreement(model(shift=shift).single_layer(), text(LENGTH, full=2, local=6), number=3)
    assert found.equal == (1.0, 0.0)
    assert found.divergence == pytest.approx(0, abs=1e-9)


def test_agreement_belongs_to_seeds_and_not_to_batches() -> None:
    schedule, selector = text(LENGTH, full=2, local=2, block=8), InformedOrder()
    found = [
        token_agreement(model(), schedule, number=5, seed=seed, batch=batch, selector=selector)
        for seed, batch in ((0, 1), (0, 3), (1, 3))
    ]
    assert found[0].equal == found[1].equal
    assert found[0].divergence == pytest.approx(found[1].divergence, rel=1e-4)
    assert found[0].divergence != pytest.approx(found[2].divergence, rel=1e-4)


def test_only_drawn_tokens_count() -> None:
    masked = torch.zeros(2, LENGTH, dtype=torch.bool)
    masked[:, 12:] = True
    known = Known(ids(2 * LENGTH).view(2, LENGTH).masked_fill(masked, MASK), masked)
    lengths = torch.tensor([LENGTH, LENGTH])
    ours, other = text(4, full=1, local=3, temperature=1.0), text(4, full=1, temperature=1.0)
    found = token_agreement(model(), ours, other.knowing(12), number=2, known=known, labels=lengths)
    assert found.equal.mean * 8 == pytest.approx(round(found.equal.mean * 8))  # of 2 times 4 tokens
    assert found.equal.mean < 1
    with pytest.raises(ValueError, match="known has other than 3 rows"):
        token_agreement(model(), ours, number=3, known=known)


def test_steps_that_a_threshold_passes_over_have_no_error() -> None:
    schedule = text(LENGTH, full=1, local=15, threshold=0.5)
    found = token_agreement(model(), schedule, number=2, selector=InformedOrder())
    steps = [step.step for step in found.steps]
    assert 0 < len(steps) < 15
    assert steps == sorted(set(steps))


def test_plain_decoding_beside_a_first_step_that_leads_its_block_chooses_where_that_does() -> None:
    schedule = text(LENGTH, full=4, local=4, block=4, lead=True)
    assert [step.until for step in schedule.plain().steps] == [step.until for step in schedule.steps]
    assert len({step.until for step in schedule.steps}) == 8
    found = token_agreement(model().single_layer(), schedule, number=2, selector=InformedOrder())
    assert found.equal == (1.0, 0.0)


def test_agreement_of_images() -> None:
    adapter = tiny.model("maskgit")
    found = token_agreement(
        adapter, cosine(16, full=4, local=3, guidance=3.0), number=2, labels=tiny.labels(adapter, 2)
    )
    assert found.divergence is not None
    assert 0 <= found.equal.mean <= 1


@torch.inference_mode()
def test_divergence_is_that_of_what_may_be_drawn() -> None:
    """However probable a mask is: it is never drawn."""
    adapter = model()
    canvas, wanted = tiny.canvas(adapter, branches=1), slice(3, 7)
    other = torch.randn(2, 4, 32, generator=random())
    exact = adapter.full(canvas, None, wanted)
    p, q = (adapter.prediction(x)[..., :MASK].double().softmax(-1) for x in (exact, other))
    expected = (p * (p / q).log()).sum(-1).mean(-1)
    torch.testing.assert_close(evaluation_error(adapter, canvas, other, wanted), expected)
    assert isinstance(adapter.head, CategoricalHead)
    assert adapter.head.log_shares(adapter.head.logits(other)).exp()[..., MASK].eq(0).all()


def test_the_same_model_at_another_length_writes_into_the_same_log() -> None:
    log = ErrorLog(model(), text(8, full=1, local=1))
    tiny.run(log.at(8), text(8, full=1, local=1))
    assert len(log.latest) == 2


def test_errors_of_a_pipeline_that_has_written_before_and_leaves_no_trace_in_it() -> None:
    pipe = TextPipeline(model().module)
    asked: Any = {"input_ids": [1, 2, 3, 4], "gen_length": 12, "num_texts": 2, "schedule": "2+6:preset=text"}
    works = pipe.works(**asked, seed=0, eos_early_stop=False)
    fresh, tokens = local_error(pipe, works)
    assert [row.step for row in fresh] == [2, 3, 4, 6, 7, 8]
    assert pipe._lengths == {}
    written = pipe(**asked, seed=0, output_type="ids", eos_early_stop=False)
    assert torch.equal(tokens[:, 4:], torch.stack(written.sequences))
    again, same = local_error(pipe, works)
    assert again == fresh
    assert torch.equal(same, tokens)


def test_evaluations_behind_the_end_of_a_text_have_no_error() -> None:
    pipe = TextPipeline(model().module)
    asked: Any = {"input_ids": [1, 2, 3, 4], "gen_length": 12, "schedule": "2+6:preset=text"}
    ended, whole = (
        local_error(pipe, pipe.works(**asked, seed=0, eos_early_stop=stops))[0] for stops in (True, False)
    )
    assert len(ended) < len(whole) == 6
    assert ended == whole[: len(ended)]
