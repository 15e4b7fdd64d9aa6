import pytest
import torch
from torch import Tensor

from recap.core.attention import attend
from recap.core.cache import CacheLayout, ContextCache, LayerCache, Rows, StackLayout
from recap.models.layers import Attention


def by_hand(attn: Attention, queries: Tensor, rows: Tensor) -> Tensor:
    """Softmax attention written out, head by head, in float64."""
    weight, width = attn.qkv.weight.double(), queries.shape[-1]
    bias = torch.zeros(3 * width).double() if attn.qkv.bias is None else attn.qkv.bias.double()
    q = queries.double() @ weight[:width].T + bias[:width]
    k = rows.double() @ weight[width : 2 * width].T + bias[width : 2 * width]
    v = rows.double() @ weight[2 * width :].T + bias[2 * width :]
    dim = width // attn.num_heads
    heads = []
    for h in range(attn.num_heads):
        part = slice(h * dim, (h + 1) * dim)
        scores = q[..., part] @ k[..., part].transpose(1, 2) / dim**0.5
        heads.append(scores.softmax(-1) @ v[..., part])
    return torch.cat(heads, -1) @ attn.proj.weight.double().T + attn.proj.bias.double()


@pytest.fixture
def attn() -> Attention:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Attention(24, 3)


def new_layer(batch: int, rows: int) -> LayerCache:
    cache = ContextCache(CacheLayout((StackLayout("s", 1, rows, 24),)), batch, "cpu")
    (layer,) = cache.stack("s")
    layer.k.fill_(torch.nan)  # rows that were never written must never be read
    layer.v.fill_(torch.nan)
    return layer


@torch.no_grad()
def test_without_a_cache_it_is_softmax_attention(attn: Attention) -> None:
    x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(attend(attn, x).double(), by_hand(attn, x, x), rtol=1e-5, atol=1e-6)
    assert torch.equal(attn(x), attend(attn, x))


@torch.no_grad()
def test_renewed_spans_see_the_rest_from_the_cache(attn: Attention) -> None:
    x = torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(1))
    layer = new_layer(2, 12)
    attend(attn, x[:, :7], layer, Rows.all(7))
    fresh = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(2))
    out = attend(attn, fresh, layer, Rows(9, (slice(1, 3), slice(7, 9))))
    rows = torch.cat([x[:, :1], fresh[:, :2], x[:, 3:7], fresh[:, 2:]], dim=1)
    torch.testing.assert_close(out.double(), by_hand(attn, fresh, rows), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_scattered_slots_differ_from_image_to_image(attn: Attention) -> None:
    x = torch.randn(2, 7, 24, generator=torch.Generator().manual_seed(1))
    layer = new_layer(2, 7)
    attend(attn, x, layer, Rows.all(7))
    slots = torch.tensor([[4, 0, 6], [1, 2, 5]])
    fresh = torch.randn(2, 3, 24, generator=torch.Generator().manual_seed(2))
    out = attend(attn, fresh, layer, Rows(7, cache_rows=slots))
    rows = x.clone()
    for image in range(2):
        rows[image, slots[image]] = fresh[image]
    torch.testing.assert_close(out.double(), by_hand(attn, fresh, rows), rtol=1e-5, atol=1e-6)


def test_predicted_bytes_are_allocated_bytes() -> None:
    layout = CacheLayout((StackLayout("a", 3, 11, 16), StackLayout("b", 2, 5, 8)), pad=7)
    for dtype in (torch.float32, torch.bfloat16):
        cache = ContextCache(layout, 6, "cpu", dtype)
        assert cache.nbytes == layout.nbytes(3, 2, dtype)
        assert cache.nbytes == 6 * (2 * 3 * 11 * 16 + 2 * 2 * 5 * 8 + 7) * dtype.itemsize
