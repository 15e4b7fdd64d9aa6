"""Foreign objects under grouped decoding: all checks pass, and nothing of the object changes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recap
from recap import wrap
from recap.core.schedule import linear
from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.mar.diffusion import DiffusionHead
from recap.models.maskgit import MaskGITConfig
from recap.verification.verifier import distance
from tests import tiny
from tests.models import standins
from tests.models.standins import STANDINS

LINEARS = ("qkv", "proj", "fc1", "fc2", "z_proj", "decoder_embed", "skip_linear", "fc", "linear", "cond_embed")
VARIANTS: dict[str, Any] = {
    "plain": {},
    "layer scale": {"scaled": True},
    "norms of queries and keys": {"normed": True},
    "another scale": {"scale": 0.2},
    "all of them": {"scaled": True, "normed": True, "scale": 0.5},
}


def build(family: str, **block: Any) -> nn.Module:
    return standins.random(STANDINS[family](**block))


def lora(family: str) -> nn.Module:
    return standins.random(standins.swap(STANDINS[family](), standins.LoRA, LINEARS))


def quantized(family: str) -> nn.Module:
    return standins.swap(build(family), standins.Int8Linear, LINEARS).eval()


def image(net: nn.Module) -> dict[str, Any]:
    """All that can be seen of an object from outside."""
    tensors = {
        name: (t.detach().clone(), t.data_ptr(), t.dtype) for name, t in net.state_dict(keep_vars=True).items()
    }
    about = {
        name: (id(part), part.training, {k: repr(v) for k, v in vars(part).items() if not k.startswith("_")})
        for name, part in net.named_modules()
    }
    hooks = [len(v) for part in net.modules() for k, v in vars(part).items() if k.endswith("hooks")]
    return {"tensors": tensors, "about": about, "hooks": hooks, "names": [sorted(vars(m)) for m in net.modules()]}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["about"] == after["about"]
    assert (before["hooks"], before["names"]) == (after["hooks"], after["names"])
    assert before["tensors"].keys() == after["tensors"].keys()
    for name, (values, *rest) in before["tensors"].items():
        assert torch.equal(values, after["tensors"][name][0]), name
        assert rest == list(after["tensors"][name][1:]), name


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", STANDINS)
def test_all_checks_pass_on_a_foreign_object(family: str, variant: str) -> None:
    report = recap.verify(wrap(build(family, **VARIANTS[variant])))
    assert report.ok, report


@pytest.mark.parametrize("change", [lora, quantized])
@pytest.mark.parametrize("family", STANDINS)
def test_wrapped_linears_are_called_as_modules(family: str, change: Any) -> None:
    net = change(family)
    wrapped = [part for part in net.modules() if isinstance(part, standins.LoRA | standins.Int8Linear)]
    assert len(wrapped) > 10
    report = recap.verify(net)
    assert report.ok, report


@pytest.mark.parametrize("family", STANDINS)
def test_a_change_of_a_wrapped_linear_is_heard(family: str) -> None:
    net = lora(family)
    adapter = wrap(net)
    before = decode(adapter)
    with torch.no_grad():
        for part in net.modules():
            if isinstance(part, standins.LoRA):
                part.up.weight.mul_(20)
    assert not torch.equal(decode(adapter), before)


def decode(adapter: recap.Adapter) -> Tensor:
    return tiny.sample(adapter, linear(16, full=2, local=2, head_steps=(3, 3)))


@pytest.mark.parametrize("change", [build, lora, quantized])
@pytest.mark.parametrize("family", STANDINS)
def test_the_object_stays_what_it_was(family: str, change: Any) -> None:
    net = change(family)
    before = image(net)
    adapter = wrap(net)
    pipe = recap.Pipeline(adapter)
    pipe.progress = False
    pipe(
        [1, 2] if adapter.classes else None,
        num_images=None if adapter.classes else 2,
        schedule=linear(16, full=2, local=2, head_steps=(3, 3)),
        seed=0,
        output_type="latent",
    )
    recap.verify(adapter)
    assert adapter.module is net
    assert_same(before, image(net))
    del adapter, pipe
    assert_same(before, image(net))


@pytest.mark.parametrize("family", STANDINS)
def test_the_plain_forward_is_the_objects_own(family: str) -> None:
    """Whatever the object's author changes in the forward is what the first check compares with."""
    net: Any = build(family)
    adapter = wrap(net)
    owner = net.mid_block if family == "maskgit" else net
    name = {"mar": "forward_mae_decoder", "mage": "forward_decoder", "maskgit": "forward"}[family]
    own = getattr(owner, name)
    setattr(owner, name, lambda *args, **options: own(*args, **options) + 1)
    assert not recap.verify(adapter)[0].ok


def test_so_is_that_of_the_denoiser() -> None:
    net: Any = build("mar")
    block = net.diffloss.net.res_blocks[1]
    own = block.forward
    block.forward = lambda *args: own(*args).roll(1, -1)
    assert not recap.verify(net)[0].ok


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("mar", MARConfig(32, 2, 3, 4, 2, 48, num_tokens=16, channels=4, buffer=3, classes=5)),
        ("mage", MAGEConfig(32, 3, 2, 4, 2, 16, codes=20, class_slots=4, fake_class=22, patch=0, vqgan=None)),
        ("maskgit", MaskGITConfig(32, 4, 4, num_tokens=16, codes=20, classes=5)),
    ],
)
def test_sizes_are_those_of_the_object(family: str, config: object) -> None:
    assert wrap(build(family)).config == config


def test_other_precisions_need_no_help() -> None:
    net = build("mar").to(torch.bfloat16)
    assert torch.isfinite(decode(wrap(net))).all()


@pytest.mark.parametrize("family", STANDINS)
def test_training_mode_is_refused_and_not_changed(family: str) -> None:
    net = build(family)
    quiet = next(part for part in net.modules() if isinstance(part, nn.Dropout))
    quiet.train()
    with pytest.raises(ValueError, match=r"training mode.*call \.eval\(\)"):
        wrap(net)
    assert quiet.training
    assert not net.training


@pytest.mark.parametrize("family", STANDINS)
def test_no_run_begins_while_dropout_acts(family: str) -> None:
    net = build(family)
    adapter = wrap(net)
    net.train()
    with pytest.raises(ValueError, match=r"training mode.*would drop 50%"):
        decode(adapter)
    net.eval()
    decode(adapter)


@pytest.mark.parametrize(
    ("family", "name"),
    [("mar", "z_proj_ln"), ("mar", "diffloss"), ("mage", "decoder_norm"), ("maskgit", "mid_block")],
)
def test_what_is_missing_is_named(family: str, name: str) -> None:
    net = build(family)
    delattr(net, name)
    with pytest.raises(ValueError, match=f"'{name}.*was looked for and not found"):
        wrap(net)


def test_what_is_missing_in_a_block_is_named() -> None:
    net: Any = build("mar")
    del net.decoder_blocks[1].attn.proj
    with pytest.raises(ValueError, match=r"block 1 of decoder_blocks.*'attn\.proj'.*has no 'proj'"):
        wrap(net)


@pytest.mark.parametrize(
    ("family", "change", "match"),
    [
        ("mage", lambda net: setattr(net, "pad_with_cls_token", False), "pad_with_cls_token is False"),
        ("mage", lambda net: setattr(net, "mask_token_label", 3), "mask_token_label is 3"),
        ("maskgit", lambda net: setattr(net, "codebook_size", 7), "21 words for a codebook_size of 7"),
        ("maskgit", lambda net: setattr(net.out_blocks[1], "skip_linear", None), r"out_blocks\[1\].skip_linear"),
        (
            "mar",
            lambda net: setattr(net, "decoder_pos_embed_learned", nn.Parameter(torch.zeros(1, 19, 8))),
            "decoder_pos_embed_learned is",
        ),
        (
            "mar",
            lambda net: setattr(net.encoder_blocks[1].attn, "gate", nn.Linear(2, 2).eval()),
            r"block 1 of.*attn\.gate is",
        ),
        ("mar", lambda net: setattr(net.decoder_blocks[0].attn, "head_dim", 5), r"block 0 of.*attn\.head_dim"),
    ],
)
def test_what_does_not_fit_is_named(family: str, change: Any, match: str) -> None:
    net = build(family)
    change(net)
    with pytest.raises(ValueError, match=match):
        wrap(net)


@pytest.mark.parametrize("other", [nn.Linear(2, 2).eval(), nn.Sequential(nn.ReLU()).eval(), "mar-base", None])
def test_what_is_no_masked_model_is_refused(other: Any) -> None:
    with pytest.raises(ValueError, match=r"fits none of .*nearest is|takes a torch module"):
        wrap(other)


def test_ours_are_taken_too_and_a_pipeline_takes_an_object_as_it_is() -> None:
    for family in tiny.FAMILIES:
        assert wrap(tiny.model(family).module).config == tiny.model(family).config
        pipe = recap.Pipeline(build(family))
        assert pipe.model.num_tokens == 16
        assert pipe.tokenizer is None


@pytest.mark.parametrize("change", [lora, quantized])
def test_kernels_keep_away_from_layers_that_are_not_plain(change: Any) -> None:
    pytest.importorskip("triton")
    from recap.engine.fused import FusedOps, fused
    from recap.models.mar.fused import FusedDiffusionHead

    assert isinstance(fused(wrap(build("mar"))).head, FusedDiffusionHead)
    head = fused(wrap(change("mar"))).head
    assert isinstance(head, DiffusionHead)
    assert not isinstance(head, FusedDiffusionHead)
    ours = standins.swap(tiny.model("maskgit").module, standins.LoRA, ("fc1", "skip_linear"))
    block = ours.get_submodule("out_blocks.0")
    x = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    ops = FusedOps()
    merge: Any = block.get_submodule("skip_linear")
    with torch.no_grad():
        assert torch.equal(ops.mlp(block.get_submodule("mlp"), x), block.get_submodule("mlp")(x))
        assert torch.equal(ops.merge(merge, x, x), merge(torch.cat([x, x], dim=-1)))


@pytest.mark.parametrize("variant", ["plain", "all of them"])
@pytest.mark.parametrize("family", STANDINS)
def test_fused_kernels_draw_the_same_from_a_foreign_object(family: str, variant: str) -> None:
    pytest.importorskip("triton")
    from recap.engine.fused import fused

    adapter = wrap(build(family, **VARIANTS[variant]))
    assert distance(decode(fused(adapter)), decode(adapter)) < 1e-4


def test_the_old_name_still_works_and_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match=r"recap\.wrap"):
        assert recap.accelerate is wrap
