"""The example for antibody sequences: what it fills in, and what it refuses."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from examples.antibodies import MASK, AntiBERTy, filling_schedule, load_strictly, main, parse

from recap import SamplingOptions
from recap.core.canvas import take

transformers = pytest.importorskip("transformers")

HERE = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"ACDEFGHIKLMNPQRSTVWY")
GIVEN = ["EVQ___SGGGLVQPG", "E_Q_V_", "EVQLVES", "___QLVESGGGLVQPGGSLRLSC", "SLR_S__A"]


@pytest.fixture(scope="module")
def small() -> AntiBERTy:
    """The same kind of network, untrained and small, which needs no file of weights."""
    sizes = {"vocab_size": len(VOCABULARY), "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=48, max_position_embeddings=40, pad_token_id=0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        net = transformers.BertForMaskedLM(config)
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return AntiBERTy.of(net.eval(), VOCABULARY)


@pytest.fixture(scope="module")
def trained() -> AntiBERTy:
    if importlib.util.find_spec("antiberty") is None:
        pytest.skip("antiberty is not installed")
    return AntiBERTy.load()


@pytest.mark.parametrize("schedule", ["2", "2+1", "2+1:temperature=1"])
def test_only_masked_residues_are_filled_in_and_batches_do_not_matter(small: AntiBERTy, schedule: str) -> None:
    together = small.fill(GIVEN, schedule)
    for given, filled in zip(GIVEN, together, strict=True):
        assert len(filled) == len(given)
        assert all(g in (MASK, f) and f in VOCABULARY for g, f in zip(given, filled, strict=True))
    assert small.fill(GIVEN, schedule, batch=1) == together
    others = [GIVEN[0][::-1], *GIVEN[1:3], GIVEN[1], *GIVEN[4:]]  # the same places, and so the same noise
    assert [small.fill(others, schedule)[i] for i in (1, 4)] == [together[i] for i in (1, 4)]


def test_the_noise_of_a_sequence_comes_from_the_seed(small: AntiBERTy) -> None:
    given = [MASK * 30]
    first, second = (small.fill(given, "4+4:temperature=1", seed) for seed in (0, 1))
    assert first != second
    assert small.fill(given, "4+4:temperature=1", 0) == first


def test_without_reuse_it_is_decoding_by_the_models_own_forward(small: AntiBERTy) -> None:
    """Greedy decoding written out: the surest of what is left, again and again."""
    model, given = small.model, "EVQ____ESGG_"
    ids = torch.tensor([small.encode(given)])
    mask = VOCABULARY.index("[MASK]")
    with torch.no_grad():
        for step in filling_schedule(5, SamplingOptions.from_text("3")).steps:
            logits = model.module(input_ids=ids).logits[0, :, 5:]
            sure, best = logits.log_softmax(-1).max(-1)
            sure[ids[0] != mask] = -torch.inf
            spots = sure.topk(step.tokens).indices
            ids[0, spots] = best[spots] + 5
    assert small.fill([given], "3") == [small.decode(ids[0].tolist())]


@torch.inference_mode()
def test_a_full_evaluation_is_the_forward_of_transformers(trained: AntiBERTy) -> None:
    ids = torch.tensor([trained.encode(HERE[:20] + MASK * 4 + HERE[24:])])
    model = trained.model.at(ids.shape[1])
    order = torch.randperm(ids.shape[1], generator=torch.Generator().manual_seed(0)).unsqueeze(0)
    canvas = model.start(None, order, 1)
    canvas.tokens.copy_(take(ids, order))
    ours = model.prediction(model.full(canvas, None, slice(0, ids.shape[1])))
    residues = torch.tensor([i for i, word in enumerate(trained.vocabulary) if not word.startswith("[")])
    theirs = model.module(input_ids=ids).logits[..., residues]
    assert float((ours - take(theirs, order)).abs().max() / theirs.abs().max()) < 1e-5


def test_conserved_residues_are_recovered(trained: AntiBERTy) -> None:
    given = HERE[:20] + "___" + HERE[23:95] + "_" + HERE[96:]  # two conserved cysteines are among them
    (filled,) = trained.fill([given], "2+1")
    assert (filled[21], filled[95]) == ("C", "C")


def test_the_command_fills_in(trained: AntiBERTy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.fasta"
    file.write_text(f">one\n{HERE[:60]}\n{HERE[60:95]}_\n{HERE[96:]}\n>two\nevq_vesggg\n")
    main([str(file), "EVQL_ESGGG", "--schedule", "1"])
    rows = capsys.readouterr().out.splitlines()
    assert [len(row) for row in rows] == [len(HERE), 10, 10]
    assert rows[0] == HERE
    assert MASK not in "".join(rows)


@pytest.mark.parametrize(
    ("masked", "text", "full", "local"),
    [(1, "8+8", 1, 0), (5, "4+4", 4, 1), (12, "8+8", 8, 4), (40, "8+8", 8, 8), (9, "2+5:chain=3", 2, 5)],
)
def test_schedules_have_a_sub_step_for_every_masked_residue_at_most(
    masked: int, text: str, full: int, local: int
) -> None:
    schedule = filling_schedule(masked, SamplingOptions.from_text(text))
    assert (schedule.tokens, schedule.full, schedule.local) == (masked, full, local)


@pytest.mark.parametrize("bad", ["EVQ1", "EV Q", "EVQX", "", "A" * 39])
def test_what_is_no_sequence_is_refused(small: AntiBERTy, bad: str) -> None:
    with pytest.raises(ValueError, match=r"no residue|is empty|has 39 residues"):
        small.fill([bad])


@pytest.mark.parametrize("text", ["", "\n\n", ">only a name\n", ">a\nEVQ\n>b\n"])
def test_files_without_sequences_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"some\.txt has"):
        parse(text, "some.txt")


def test_bad_input_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"nowhere\.fasta is not there"):
        main(["nowhere.fasta"])

    class Found:
        submodule_search_locations = (str(tmp_path),)

    for found, message in ((None, r"antiberty==0\.1\.3"), (Found(), r"antiberty 0\.2\.0 carries no weights")):
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
            patch.setattr(importlib.metadata, "version", lambda name: "0.2.0")
            with pytest.raises(SystemExit, match=message):
                main(["EVQ_"])


def test_weights_that_do_not_fit_are_refused(small: AntiBERTy) -> None:
    tensors: dict[str, Any] = dict(small.model.module.state_dict())
    load_strictly(small.model.module, tensors)
    with pytest.raises(ValueError, match=r"do not fit BertForMaskedLM at 'more'"):
        load_strictly(small.model.module, tensors | {"more": torch.zeros(1)})
    tensors.pop("bert.embeddings.word_embeddings.weight")
    with pytest.raises(ValueError, match="word_embeddings"):
        load_strictly(small.model.module, tensors)
