"""A family is one folder and one line: everything else reads its record."""

from pathlib import Path

import pytest
import torch

import recap
from recap import Pipeline
from recap.checkpoints import load_official, load_pretrained, save_pretrained
from recap.core.costs import run_cost
from recap.core.schedule import linear
from recap.models.registry import FAMILIES, SIZES, adapt, build, family_of, randomize, tiny, usual_preset
from recap.planning.plan import plan
from tests import tiny as small
from tests.models.toy import TOY, QuickHead, Toy, ToyAdapter, ToyConfig

CONFIG = ToyConfig()
SCHEDULE = linear(16, full=3, local=3, warmup=0)


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


@pytest.fixture
def net() -> Toy:
    made = randomize(build(CONFIG))
    assert isinstance(made, Toy)
    return made


def test_it_is_built_and_adapted(net: Toy) -> None:
    assert family_of(net) is TOY
    assert isinstance(adapt(net), ToyAdapter)
    assert usual_preset(adapt(net)) == "mar"
    assert tiny(CONFIG).width == 8
    assert build(CONFIG, meta=True).get_parameter("places").is_meta


def test_its_files_are_written_read_and_recognised(net: Toy, tmp_path: Path) -> None:
    folder = save_pretrained(net, tmp_path / "toy", compact=True)
    assert load_pretrained(folder).config == CONFIG
    torch.save({"model": net.state_dict()}, tmp_path / "official.pth")
    theirs = load_official(tmp_path / "official.pth")
    assert theirs.config == CONFIG
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in net.state_dict().items())


def test_it_obeys_every_check(net: Toy) -> None:
    report = recap.verify(net)
    assert report.ok, report


def test_a_pipeline_samples_it_and_a_plan_counts_it(net: Toy, tmp_path: Path) -> None:
    pipe = Pipeline(net)
    pipe.progress = False
    first, second = (
        p(num_images=2, schedule=SCHEDULE, seed=0, output_type="latent").tokens
        for p in (pipe, Pipeline.from_pretrained(pipe.save_pretrained(tmp_path / "toy")))
    )
    assert first.shape == (2, 16, 3)
    assert torch.equal(first, second)
    cost = run_cost(CONFIG, SCHEDULE)
    assert plan("toy", CONFIG, SCHEDULE).cost == cost
    assert 0 < cost.local < cost.full


def test_engines_take_its_own_head(net: Toy) -> None:
    pytest.importorskip("triton")
    from recap.engine.fused import fused, fused_head
    from recap.engine.graphs import GraphedModel
    from tests.engine.test_engines import Pretended

    plain, capture = adapt(net), Pretended()
    assert isinstance(fused(plain).head, QuickHead)
    quick = GraphedModel(plain.replace(head=fused_head(plain.head)), capture)
    assert isinstance(quick.head, QuickHead)
    assert quick.head.replayed
    for _ in range(3):
        torch.testing.assert_close(small.sample(quick, SCHEDULE), small.sample(plain, SCHEDULE))
    assert capture.replayed


@pytest.mark.parametrize("name", SIZES)
def test_records_agree_with_what_they_describe(name: str) -> None:
    """What a record says of heads, classes and tokenizers is what adapters of its sizes do."""
    family = family_of(SIZES[name])
    adapter = adapt(build(SIZES[name], meta=True))
    assert isinstance(adapter, family.adapter)  # type: ignore[arg-type]
    assert adapter.guidable == family.conditional
    assert (type(adapter.head).__name__ == "CategoricalHead") == (family.draws == "ids")
    assert hasattr(adapter.module, "vqgan") == family.tokenizer_inside
    assert (family.tokenizer_config(SIZES[name]) is None) == (family.modality == "text")
    assert family_of(family.tiny(SIZES[name])) is family
