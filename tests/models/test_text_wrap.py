"""LLaDA's and Dream's own objects under grouped decoding: they are computed with, and stay as they were."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import recap
from recap import wrap
from recap.models.text import TextAdapter
from recap.pipelines import TextPipeline
from tests.models import standins
from tests.models.test_registry import assert_same, image
from tests.models.test_text_parity import adapter as own
from tests.models.text_standins import standin
from tests.models.text_weights import CONFIGS, text

LINEARS = (
    *("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
    *("o_proj", "gate_proj", "down_proj", "lm_head"),
)
SWITCHES = ("flash", "mem_efficient", "math", "cudnn")


def lora(kind: str) -> nn.Module:
    net = standins.swap(standin(kind), standins.LoRA, LINEARS)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, standins.LoRA):
                for small in (part.down, part.up):
                    small.weight.copy_(0.1 * torch.randn(small.weight.shape, generator=generator))
    return net.eval()


def quantized(kind: str) -> nn.Module:
    return standins.swap(standin(kind), standins.Int8Linear, LINEARS).eval()


def switches() -> list[bool]:
    """Which kinds of attention torch may use in this process."""
    return [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in SWITCHES]


@pytest.fixture
def _odd_switches() -> Iterator[None]:
    """As LLaDA's constructor leaves them."""
    before = switches()[SWITCHES.index("mem_efficient")]
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    yield
    torch.backends.cuda.enable_mem_efficient_sdp(before)


@pytest.mark.usefixtures("_odd_switches")
@pytest.mark.parametrize("change", [standin, lora, quantized])
@pytest.mark.parametrize("kind", CONFIGS)
def test_all_checks_pass_and_the_object_stays_what_it_was(kind: str, change: Any) -> None:
    net = change(kind)
    if change is not standin:
        assert sum(isinstance(part, standins.LoRA | standins.Int8Linear) for part in net.modules()) >= 14
    before, kept, about = image(net), switches(), dict(vars(net.config))
    adapter = wrap(net)
    assert isinstance(adapter, TextAdapter)
    assert adapter.module is net
    assert adapter.longest == 512
    report = recap.verify(adapter)
    assert report.ok, report
    pipe = TextPipeline(adapter)
    pipe.progress = False
    prompts = [row[:length].tolist() for row, length in zip(text("prompt", 2, 9), (9, 4), strict=True)]
    written = pipe(input_ids=prompts, gen_length=16, schedule="4+12", output_type="ids", seed=0, guidance=1.5)
    assert [len(ids) for ids in written.sequences] == [16, 16]
    assert_same(before, image(net))
    assert (switches(), dict(vars(net.config))) == (kept, about)
    del adapter, pipe
    assert_same(before, image(net))


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_writes_what_our_own_network_writes(kind: str) -> None:
    pipes = [TextPipeline(model) for model in (wrap(standin(kind)), own(kind))]
    ids = text("prompt", 1, 9)[0].tolist()
    for options in ("8+24:preset=fast-dllm-dual", "16:preset=llada", "8+24"):
        ours, theirs = (
            pipe(input_ids=ids, gen_length=32, schedule=options, output_type="ids", seed=0).sequences[0]
            for pipe in pipes
        )
        assert torch.equal(ours, theirs)


def test_a_change_of_a_wrapped_linear_is_heard() -> None:
    net = lora("dream")
    pipe = TextPipeline(wrap(net))
    first, second = (pipe(gen_length=16, schedule="4+12", output_type="ids", seed=0).sequences[0] for _ in range(2))
    assert torch.equal(first, second)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, standins.LoRA):
                part.up.weight.mul_(20)
    pipe.compile("eager")
    assert not torch.equal(pipe(gen_length=16, schedule="4+12", output_type="ids", seed=0).sequences[0], first)


@pytest.mark.parametrize(
    ("kind", "entry", "value", "words"),
    [
        ("llada", "block_type", SimpleNamespace(value="sequential"), "block_type"),
        ("llada", "input_emb_norm", True, "input_emb_norm"),
        ("llada", "scale_logits", True, "scale_logits"),
        ("llada", "mask_token_id", None, "no 'mask_token_id'"),
        ("dream", "rope_scaling", {"type": "linear", "factor": 2.0}, "linear"),
        ("dream", "hidden_act", "gelu", "hidden_act"),
    ],
)
def test_what_is_not_computed_here_is_refused(kind: str, entry: str, value: Any, words: str) -> None:
    net: Any = standin(kind)
    setattr(net.config, entry, value)
    with pytest.raises(ValueError, match=words):
        wrap(net)


def test_dropout_that_acts_is_refused() -> None:
    net: Any = standin("llada")
    net.model.transformer["blocks"][1].dropout.p = 0.1
    net.train()
    with pytest.raises(ValueError, match="training mode"):
        wrap(net)
    assert net.training
