"""Packed weights: the features of plain torch, the network untouched, whatever happens to its weights followed."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recap
from recap.core.attention import TORCH, split_heads
from recap.core.canvas import Canvas
from recap.engine import packed
from recap.engine.cpu_attention import CPUOps, compiled
from recap.engine.packed import PackedLinear, PackedModel
from recap.models.adapter import Adapter
from recap.pipelines.output import collect
from recap.runs import draw
from recap.runs.works import Work
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


def test_batches_of_mar_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, together = recap.load("flowers-mar"), set[int]()
    pipe.progress = False
    assert pipe.model.exact_batches

    def drawn(batch: int, schedule: str, threads: int) -> Tensor:
        pipe.batch_size = batch
        torch.set_num_threads(threads)
        return pipe(labels=list(range(8)), schedule=schedule, seed=0, output_type="latent").tokens

    def begin(pipe: recap.Pipeline, works: Sequence[Work], size: int) -> Iterator[Canvas]:
        together.add(len(works))
        return began(pipe, works, size)

    began, before = draw.begin, torch.get_num_threads()
    monkeypatch.setattr(draw, "begin", begin)
    try:
        for schedule, threads in (("2+1", 2), ("2", 1)):
            alone = drawn(1, schedule, threads)
            assert all(torch.equal(drawn(batch, schedule, threads), alone) for batch in (3, 8))
    finally:
        torch.set_num_threads(before)
    assert together == {1, 2, 3, 8}


def test_only_what_is_known_to_be_exact_is_drawn_in_batches() -> None:
    assert PackedModel(tiny.model("mar")).exact_batches
    assert not PackedModel(tiny.model("maskgit")).exact_batches
    assert not PackedModel(recap.wrap(standins.random(STANDINS["mar"](scaled=True, normed=True)))).exact_batches
    halved = tiny.model("mar")
    halved.module.to(torch.bfloat16)
    assert not PackedModel(halved).exact_batches
    hooked = tiny.model("mar")
    next(part for part in hooked.module.modules() if type(part) is nn.Linear).register_forward_hook(lambda *_: None)
    assert not PackedModel(hooked).exact_batches


@torch.inference_mode()
@pytest.mark.parametrize("then", ["none", "gelu", "swish"])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 40), (1152, 288)])
def test_the_bits_of_a_row_do_not_depend_on_the_others(inputs: int, outputs: int, then: str) -> None:
    layer, x = packed.twin(nn.Linear(inputs, outputs), {}), torch.randn(70, inputs)
    whole = layer(x, then)
    assert distance(whole, packed.AFTERWARDS[then](nn.functional.linear(x, layer.weight, layer.bias))) <= 1e-5
    assert all(torch.equal(layer(x[first : first + 9], then), whole[first : first + 9]) for first in range(61))
    assert all(torch.equal(layer(x[:rows], then), whole[:rows]) for rows in range(1, 70))


@torch.inference_mode()
def test_attention_of_all_rows_is_torchs_and_the_same_in_every_batch() -> None:
    ops, width = CPUOps(rows=65), 6 * 40
    q, k, v = (split_heads(part, 6) for part in torch.randn(3, 65, 3 * width).chunk(3, dim=-1))
    mixed = ops.attention(q, k, v)
    assert distance(mixed, TORCH.attention(q, k, v)) <= 1e-5
    assert all(torch.equal(ops.attention(q[i : i + 1], k[i : i + 1], v[i : i + 1])[0], mixed[i]) for i in range(3))
    made = compiled.cache_info()
    assert made.currsize > 0
    assert distance(ops.attention(q[:, :, :9], k, v), mixed[:, :, :9]) <= 1e-5  # few rows are torch's
    assert compiled.cache_info() == made


GROWTH = """
import resource, sys
import recap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6

pipe = recap.load("flowers-maskgit")
pipe.progress = False
def draw(images):
    for seed in range(images):
        pipe(labels=[seed], schedule="2+1", seed=seed)
draw(5)
before = resident()
draw(100)
print(resident() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_hundred_images_grow_the_process_by_less_than_20_mb() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20


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
    assert distance(features(PackedModel(plain))[0], features(plain)[0]) < 1e-15
    layer = nn.Linear(4, 4)
    twin = packed.twin(layer, {})
    twin(torch.ones(1, 4)).sum().backward()
    assert layer.weight.grad is not None
