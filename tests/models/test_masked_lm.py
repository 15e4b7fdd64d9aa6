"""Masked language models of transformers: our full evaluation is their forward, padding included."""

from typing import Any

import pytest
import torch

import recap
from recap.contract import distance
from recap.core.cache import ContextCache
from recap.core.canvas import take
from recap.filling import batches, filling_schedule
from recap.models.masked_lm import MaskedLMAdapter
from tests import tiny

transformers = pytest.importorskip("transformers")

MASK, PAD, WORDS = 3, 0, 29
LENGTHS = (17, 9, 13)


def net(kind: str = "bert", **changes: Any) -> Any:
    sizes = {
        "vocab_size": WORDS,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "pad_token_id": PAD if kind == "bert" else 1,
        **changes,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "bert":
            made = transformers.BertForMaskedLM(transformers.BertConfig(**sizes))
        else:
            made = transformers.RobertaForMaskedLM(transformers.RobertaConfig(**sizes))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return made.eval()


def adapter(kind: str = "bert", **changes: Any) -> MaskedLMAdapter:
    return MaskedLMAdapter(net(kind, **changes), mask_id=MASK, drawn=range(5, 25), num_tokens=17)


def sentences(pad: int) -> torch.Tensor:
    """A padded batch of three lengths, four ids of each masked."""
    ids = torch.full((3, 17), pad)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = 5 + (tiny.noise(1, row).uniform(length) * 20).long()
        ids[row, 2:6] = MASK
    return ids


def canvas_of(model: MaskedLMAdapter, ids: torch.Tensor) -> Any:
    known = recap.Known(ids, ids == MASK)
    canvas = model.start(None, known.first(tiny.noise(3).permutation(17)), 1)
    canvas.tokens.copy_(take(ids, canvas.order))
    canvas.decoded = known.count
    return canvas


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
@torch.inference_mode()
def test_a_full_evaluation_is_the_models_own_forward_padding_included(kind: str, attention: str) -> None:
    model = adapter(kind, attn_implementation=attention)
    pad = model.description.pad_id
    assert pad is not None
    ids = sentences(pad)
    canvas = canvas_of(model, ids)
    ours = model.prediction(model.full(canvas, None, slice(0, 17)))
    theirs = model.module(input_ids=ids, attention_mask=(ids != pad).long()).logits[..., 5:25]
    real = take((ids != pad).unsqueeze(-1), canvas.order).squeeze(-1)
    assert int((~real).sum()) == 12
    assert distance(ours[real], take(theirs, canvas.order)[real]) < 1e-5
    cache = ContextCache(model.cache_layout(), 3, "cpu")
    full = model.full(canvas, cache, slice(0, 17))
    rows = slice(canvas.decoded, 17)
    assert distance(model.local(canvas, cache, rows, rows), full[:, rows]) < 1e-5


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_all_laws_hold(kind: str) -> None:
    model = adapter(kind)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    report = recap.verify(model)
    assert report.ok, report
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.module.state_dict().items())


def test_only_masked_ids_are_filled_in_and_batches_do_not_matter() -> None:
    model = adapter()
    given = [row[:length].tolist() for row, length in zip(sentences(PAD), LENGTHS, strict=True)]
    given.append([5, 6, 7])
    given[1][7] = MASK  # one more than the others
    for temperature in (0.0, 1.0):
        together = recap.fill(model, given, full=2, local=1, temperature=temperature)
        for index, (before, after) in enumerate(zip(given, together, strict=True)):
            assert all(b == a if b != MASK else a in range(5, 25) for b, a in zip(before, after, strict=True))
            alone = [[9]] * index + [before]  # the same place in the list, and so the same noise
            assert recap.fill(model, alone, full=2, local=1, temperature=temperature)[index] == after


def test_without_local_steps_it_is_decoding_by_the_models_own_forward() -> None:
    """Greedy decoding spelled out: the surest of what is left, again and again."""
    model = adapter()
    ids = sentences(PAD)[:1]
    expected = ids.clone()
    with torch.no_grad():
        for step in filling_schedule(4, 3, 0).steps:
            logits = model.module(input_ids=expected, attention_mask=(expected != PAD).long()).logits[0, :, 5:25]
            sure, best = logits.log_softmax(-1).max(-1)
            sure[expected[0] != MASK] = -torch.inf
            spots = sure.topk(step.tokens).indices
            expected[0, spots] = best[spots] + 5
    assert recap.fill(model, ids.tolist(), full=3, local=0) == expected.tolist()


def test_sequences_go_together_by_the_number_of_masked_ids() -> None:
    rows = [[3, 5, 5], [5], [3, 3], [3], [7, 3, 7, 7]]
    assert list(batches(rows, MASK, 2)) == [[0, 3], [4], [2]]


@pytest.mark.parametrize(("masked", "full", "local"), [(1, 8, 8), (5, 4, 4), (12, 8, 8), (40, 8, 8), (9, 2, 5)])
def test_schedules_have_a_step_for_every_masked_id_at_most(masked: int, full: int, local: int) -> None:
    schedule = filling_schedule(masked, full, local)
    assert schedule.tokens == masked
    assert len(schedule.steps) <= masked
    assert schedule.full == min(full, masked)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"full": 0}, "at least one full evaluation"),
        ({"local": -1}, "at least one full evaluation"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        recap.fill(adapter(), [[5, MASK, 6]], **options)


def test_sequences_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="places for 1 to 40"):
        recap.fill(adapter(), [[MASK] * 41])
    with pytest.raises(ValueError, match="places for 1 to 38"):
        adapter("roberta").at(39)
    with pytest.raises(ValueError, match="padding id 0"):
        recap.fill(adapter(), [[5, PAD, MASK]])


def test_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="id 29 is none"):
        MaskedLMAdapter(net(), mask_id=29)
    with pytest.raises(ValueError, match="base_model_prefix"):
        MaskedLMAdapter(torch.nn.Linear(2, 2), mask_id=1)
    with pytest.raises(ValueError, match="training mode"):
        MaskedLMAdapter(net().train(), mask_id=MASK)
    sizes = {"vocab_size": 20, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
    other = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(**sizes)).eval()
    with pytest.raises(ValueError, match=r"'distilbert\.encoder\.layer'|pad_token_id|encoder"):
        MaskedLMAdapter(other, mask_id=MASK)
