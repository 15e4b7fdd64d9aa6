"""On a CPU the number of threads, the batch and the default dtype change no bit of tokens or images."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import recap
from recap import weights
from recap.core.attention import Ops
from recap.engine.cpu_attention import CPUOps
from recap.engine.packed import available
from recap.tokenizers.layers import Pointwise, silu

THREADS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


def each(make: Any) -> list[Any]:
    """What is made with each number of threads."""
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        found.append(make())
    return found


def same(values: list[torch.Tensor]) -> bool:
    return all(torch.equal(values[0], value) for value in values)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 33])
@pytest.mark.parametrize("length", [19, 80, 333])
def test_attention_of_few_rows(rows: int, length: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, size, 6, 32).transpose(1, 2) for size in (rows, length, length))
    with torch.inference_mode():
        ops = CPUOps(10**6)
        made = each(lambda: [ops.attention(q[:images], k[:images], v[:images]) for images in (1, 2, 3)])
    whole = made[0][-1]
    assert all(torch.equal(one, whole[: len(one)]) for several in made for one in several)
    assert torch.allclose(whole, Ops().attention(q, k, v), atol=1e-5)


@pytest.mark.parametrize(
    "shape", [(1, 32, 128, 128), (1, 64, 64, 64), (2, 128, 33, 33), (1, 7, 5, 3), (1, 128, 256, 256)]
)
def test_activations(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) * 4
    with torch.no_grad():
        made = each(lambda: silu(x))
    torch.set_num_threads(1)
    assert same([F.silu(x), *made])
    x.requires_grad_()
    torch.autograd.backward(silu(x).sum())  # for training it is torch's own
    assert x.grad is not None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("cin", "cout", "side"), [(128, 64, 64), (64, 32, 128), (256, 512, 16), (4, 8, 3)])
def test_convolutions_of_one_by_one(cin: int, cout: int, side: int, bias: bool) -> None:
    layer, x = Pointwise(cin, cout, bias=bias), torch.randn(2, cin, side, side)
    with torch.no_grad():
        made = each(lambda: layer(x))
        assert same(made)
        assert torch.allclose(made[0], F.conv2d(x, layer.weight, layer.bias), atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="the engine onednn needs a processor that it knows")
@pytest.mark.parametrize("name", [name for name in weights.embedded() if name != "books"])
def test_the_models_inside(name: str) -> None:
    pipe = recap.load(name)
    pipe.progress = False
    asked: dict[str, Any] = {"num_images": 4, "schedule": "2+1", "seed": 11, "output_type": "pt"}
    if pipe.model.classes:
        asked["labels"] = list(range(4))

    drawn = []
    for threads, pipe.batch_size in ((1, 1), (2, 3), (3, 8), (4, 1)):
        torch.set_num_threads(threads)
        drawn.append(pipe(**asked))
    torch.set_default_dtype(torch.float64)
    drawn.append(pipe(**asked))
    assert same([one.tokens for one in drawn])
    assert same([one.images for one in drawn])


@pytest.mark.skipif(not available(), reason="the engine onednn needs a processor that it knows")
def test_the_model_of_text_inside() -> None:
    pipe, drawn = recap.load("books"), list[Any]()
    pipe.progress = False
    for threads, pipe.batch_size in ((1, 1), (2, 3), (4, 8)):
        torch.set_num_threads(threads)
        drawn.append(pipe(["Once upon a time", "It"], gen_length=40, schedule="6+12", seed=3).sequences)
    assert all(same([one[text] for one in drawn]) for text in range(2))


@pytest.mark.parametrize("family", ["mar", "mage", "maskgit"])
def test_the_default_dtype_is_nobodys_business(family: str) -> None:
    from tests.pipelines.test_pipeline import draw, pipeline

    usual = draw(pipeline(family), family, output_type="pt")
    pipe = pipeline(family)
    torch.set_default_dtype(torch.float64)
    other = draw(pipe, family, output_type="pt")
    assert same([usual.tokens, other.tokens])
    assert same([usual.images, other.images])
