"""Masked language models of transformers: our full evaluation is their forward, padding included."""

from typing import Any

import pytest
import torch

import recap
from recap.core.cache import ContextCache
from recap.core.canvas import Known, take
from recap.models.text.masked_lm import MaskedLMAdapter
from recap.verification.verifier import distance
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
    return MaskedLMAdapter(net(kind, **changes), mask_id=MASK, allowed_ids=range(5, 25), num_tokens=17)


def sentences(pad: int) -> torch.Tensor:
    """A padded batch of three lengths, four ids of each masked."""
    ids = torch.full((3, 17), pad)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = 5 + (tiny.noise(1, row).uniform(length) * 20).long()
        ids[row, 2:6] = MASK
    return ids


def canvas_of(model: MaskedLMAdapter, ids: torch.Tensor) -> Any:
    known = Known(ids, ids == MASK)
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
def test_all_checks_pass(kind: str) -> None:
    model = adapter(kind)
    before = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    report = recap.verify(model)
    assert report.ok, report
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.module.state_dict().items())


def test_sequences_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="places for 1 to 40"):
        adapter().at(41)
    with pytest.raises(ValueError, match="places for 1 to 38"):
        adapter("roberta").at(39)


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
