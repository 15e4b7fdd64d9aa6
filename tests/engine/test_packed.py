"""Packed weights: the features of plain torch, the network untouched, whatever happens to its weights followed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recap
from recap.engine import packed
from recap.engine.packed import PackedLinear, PackedModel
from recap.models.adapter import Adapter
from recap.pipelines.output import collect
from recap.verification.verifier import distance
from tests import tiny
from tests.models import standins
from tests.models.standins import STANDINS
from tests.models.test_described import made
from tests.models.test_registry import LINEARS, assert_same, image

pytestmark = pytest.mark.skipif(not packed.available(), reason="needs oneDNN and AVX2")


@torch.inference_mode()
def features(model: Adapter) -> tuple[Tensor, Tensor]:
    """Of a full evaluation, and of a local one after some tokens came."""
    canvas = tiny.canvas(model)
    cache = model.new_cache(canvas, recap.cosine(model.num_tokens, full=2, local=2))
    canvas.commit(tiny.values(model, 2, 5))
    full = model.full(canvas, cache, slice(5, 12)).clone()
    canvas.commit(tiny.values(model, 2, 3))
    return full, model.local(canvas, cache, slice(5, 12), slice(8, 12)).clone()


def check(model: Adapter, plain: Adapter) -> None:
    for ours, theirs in zip(features(model), features(plain), strict=True):
        assert distance(ours, theirs) <= 1e-5


def packed_layers(model: PackedModel) -> list[str]:
    return [name for name, part in model.model.module.named_modules() if isinstance(part, PackedLinear)]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_packed_models_pass_all_checks_and_have_every_layer_packed(family: str) -> None:
    plain = tiny.model(family)
    model = PackedModel(plain)
    assert recap.verify(model).ok
    check(model, plain)
    linears = [name for name, part in plain.module.named_modules() if type(part) is nn.Linear]
    assert packed_layers(model) == linears != []
    assert model.module is plain.module


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_an_image_does_not_depend_on_its_neighbours(family: str) -> None:
    pipe = recap.Pipeline(PackedModel(tiny.model(family)))
    labels = [1, 2, 3] if pipe.model.classes else None
    several = pipe(labels, num_images=None if labels else 3, schedule="3+3", seed=0, output_type="latent").tokens
    alone = pipe.works(labels, None if labels else 3, "3+3", seed=0)[2:]
    assert torch.equal(collect(pipe, alone, "latent").tokens[0], several[2])


@pytest.mark.parametrize("family", STANDINS)
@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_a_foreign_object_is_left_as_it_was(family: str, kind: str) -> None:
    net = STANDINS[family](scaled=True, normed=True)
    net = standins.random(standins.swap(net, standins.LoRA, LINEARS) if kind == "lora" else net)
    before = image(net)
    model = PackedModel(recap.wrap(net))
    assert recap.verify(model).ok
    assert packed_layers(model)
    assert_same(before, image(net))


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "together"])
def test_a_described_model_passes_all_checks(fused: bool) -> None:
    net, description = made(True, fused, None, "module")
    model = PackedModel(recap.wrap(net, description))
    assert recap.verify(model).ok
    assert packed_layers(model)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda net: [p.data.mul_(1.1) for p in net.parameters()] and [p.add_(0.01) for p in net.parameters()],
    "loaded": lambda net: net.load_state_dict({k: v * 1.05 for k, v in net.state_dict().items()}),
    "assigned": lambda net: net.load_state_dict({k: v * 1.05 for k, v in net.state_dict().items()}, assign=True),
    "another precision and back": lambda net: net.to(torch.float64).float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_weights_are_followed(change: str) -> None:
    plain = tiny.model("maskgit")
    model = PackedModel(plain)
    before = features(model)
    with torch.no_grad():
        CHANGES[change](plain.module)
    check(model, plain)
    assert change.startswith("another") or distance(features(model)[0], before[0]) > 1e-3


def test_weights_that_take_the_place_of_freed_ones_are_seen() -> None:
    layer, x = nn.Linear(64, 64), torch.ones(4, 64)
    twin = packed.twin(layer, {})
    with torch.no_grad():
        for _ in range(20):
            assert distance(twin(x), layer(x)) <= 1e-5
            for factor in (-2.0, 0.3):  # the second may come to lie where the weights of before were
                layer.weight.data = layer.weight.data * factor


def test_a_layer_with_a_hook_is_called_as_it_is() -> None:
    plain, seen = tiny.model("mage"), list[int]()
    layer = next(part for part in plain.module.modules() if type(part) is nn.Linear)
    layer.register_forward_hook(lambda *_: seen.append(1))
    model = PackedModel(plain)
    features(model)
    assert len(packed_layers(model)) == sum(type(part) is nn.Linear for part in plain.module.modules()) - 1


def test_other_precisions_and_gradients_are_torchs() -> None:
    plain = tiny.model("maskgit")
    plain.module.double()
    assert distance(features(PackedModel(plain))[0], features(plain)[0]) == 0.0
    layer = nn.Linear(4, 4)
    twin = packed.twin(layer, {})
    twin(torch.ones(1, 4)).sum().backward()
    assert layer.weight.grad is not None
