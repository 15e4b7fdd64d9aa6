"""Plain stacks of other makes, under a description: norms before or after, q, k, v together or apart, positions."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recap
from recap import Description, wrap
from recap.core.schedule import linear
from recap.models.described import DescribedAdapter, Rotary
from tests import tiny

N, WIDTH, HEADS, CODES = 16, 24, 3, 11


class Layer(nn.Module):
    """One block, written without the library: every choice that a description can make is a choice here."""

    def __init__(self, after: bool, fused: bool, rotary: Rotary | None, normed: bool) -> None:
        super().__init__()
        self.after, self.rotary = after, rotary
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        if fused:
            self.all = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.parts = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("query", "key", "value")})
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH // HEADS) for _ in range(2)) if normed else None
        self.back = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 40), nn.Sequential(nn.GELU(), nn.Linear(40, WIDTH))

    def mix(self, x: Tensor) -> Tensor:
        if hasattr(self, "all"):
            q, k, v = self.all(x).split(WIDTH, dim=-1)
        else:
            q, k, v = (self.parts[name](x) for name in ("query", "key", "value"))
        q, k, v = (y.reshape(*y.shape[:2], HEADS, -1) for y in (q, k, v))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rotary is not None:
            q, k = spin(q, self.rotary), spin(k, self.rotary)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / (WIDTH // HEADS) ** 0.5
        return self.back(torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.first(x + self.mix(x))
            return self.second(x + self.down(self.up(x)))
        x = x + self.mix(self.first(x))
        return x + self.down(self.up(self.second(x)))


def spin(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotation written out: pairs are complex numbers."""
    width = int(x.shape[-1] * rotary.share)
    part, rest = x[..., :width], x[..., width:]
    rates = torch.tensor([rotary.base ** (-2 * i / width) for i in range(width // 2)], dtype=x.dtype)
    angle = torch.arange(x.shape[1])[:, None] * rates
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    if rotary.pairs == "neighbours":
        turned = torch.view_as_real(torch.view_as_complex(part.reshape(*part.shape[:-1], -1, 2).contiguous()) * turn)
        return torch.cat([turned.flatten(-2), rest], dim=-1)
    turned = torch.complex(part[..., : width // 2].contiguous(), part[..., width // 2 :].contiguous()) * turn
    return torch.cat([turned.real, turned.imag, rest], dim=-1)


class Stack(nn.Module):
    def __init__(
        self, after: bool, fused: bool, rotary: Rotary | None = None, table: str = "", normed: bool = False
    ) -> None:
        super().__init__()
        self.ids = nn.Embedding(CODES + 2, WIDTH)
        if table == "module":
            self.places: Any = nn.Embedding(N + 2, WIDTH)
        elif table == "parameter":
            self.places = nn.Parameter(torch.randn(1, N, WIDTH))
        self.table, self.smooth = table, nn.LayerNorm(WIDTH)
        self.inner = nn.Module()
        self.inner.layers = nn.ModuleList(Layer(after, fused, rotary, normed) for _ in range(3))
        self.end = nn.Identity() if after else nn.LayerNorm(WIDTH)
        self.words = nn.Linear(WIDTH, CODES + 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.ids(ids)
        if self.table == "module":
            x = x + self.places(torch.arange(2, N + 2))
        elif self.table == "parameter":
            x = x + self.places
        x = self.smooth(x)
        for layer in self.inner.get_submodule("layers").children():
            x = layer(x)
        return self.words(self.end(x))


def made(after: bool, fused: bool, rotary: Rotary | None, table: str, normed: bool = False) -> tuple[Stack, Any]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Stack(after, fused, rotary, table, normed).eval()
        with torch.no_grad():
            for parameter in net.parameters():  # no norm is like another
                parameter.add_(0.1 * torch.randn_like(parameter))
    where = {"qkv": "all"} if fused else {"q": "parts.query", "k": "parts.key", "v": "parts.value"}
    norms = {"q_norm": "norms.0", "k_norm": "norms.1"} if normed else {}
    return net, Description(
        num_tokens=N,
        codes=CODES,
        mask_id=CODES,
        heads=HEADS,
        words="ids",
        positions="places" if table else None,
        first_position=2 if table == "module" else 0,
        embed_norm="smooth",
        blocks="inner.layers",
        norm1="first",
        norm2="second",
        norms="after" if after else "before",
        out="back",
        mlp=("up", "down"),
        rotary=rotary,
        norm=None if after else "end",
        logits="words",
        **where,  # type: ignore[arg-type]
        **norms,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("after", [False, True], ids=["norms before", "norms after"])
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("rotary", "table", "normed"),
    [
        (None, "module", False),
        (None, "parameter", True),
        (Rotary(), "", False),
        (Rotary(100.0, "neighbours", share=0.5), "", True),
    ],
    ids=["table", "parameter", "rotary", "neighbours"],
)
def test_all_checks_pass(after: bool, fused: bool, rotary: Rotary | None, table: str, normed: bool) -> None:
    net, description = made(after, fused, rotary, table, normed)
    report = recap.verify(wrap(net, description))
    assert report.ok, report


@pytest.mark.parametrize(
    "wrong",
    [
        {"norms": "after", "norm": None},
        {"heads": 2},
        {"rotary": Rotary()},
        {"first_position": 0},
        {"norm1": "second"},
        {"mlp": ("up", "down", "back")},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_wrong_description_fails_the_first_check(wrong: dict[str, Any]) -> None:
    net, description = made(False, True, None, "module")
    report = recap.verify(wrap(net, replace(description, **wrong)))
    assert not report[0].ok


def test_only_allowed_ids_are_sampled() -> None:
    net, description = made(True, False, None, "module")
    adapter = wrap(net, replace(description, codes=None, allowed_ids=(7, 2, 9)))
    assert recap.verify(adapter).ok
    assert set(tiny.sample(adapter, linear(N, full=2, local=2), 3).flatten().tolist()) <= {7, 2, 9}


@torch.inference_mode()
def test_padding_is_not_seen() -> None:
    """With padding behind it, a sequence is what it is alone; and so in a local evaluation."""
    net, description = made(True, False, None, "module")
    pad = CODES + 1
    adapter = wrap(net, replace(description, pad_id=pad))
    short = wrap(net, replace(description, num_tokens=10))
    ids = (tiny.noise(2).uniform(N) * CODES).long()
    ids[:, 10:] = pad
    ids[:, 3:7] = CODES
    order = torch.cat([torch.arange(3), torch.arange(7, N), torch.arange(3, 7)]).repeat(2, 1)
    canvas = adapter.start(None, order, 1)
    canvas.tokens.copy_(ids.gather(1, order))
    canvas.decoded = 12
    cache = adapter.new_cache(canvas, linear(4, full=1, local=1, known=12))
    full = adapter.full(canvas, cache, slice(12, 16))
    alone = short.start(None, torch.arange(10).repeat(2, 1), 1)
    alone.tokens.copy_(ids[:, :10])
    expected = short.full(alone, None, slice(3, 7))
    torch.testing.assert_close(full, expected, rtol=1e-5, atol=1e-5)
    canvas.tokens[:, 12:14] = 5
    canvas.decoded = 14
    single = adapter.single_layer()
    cache = single.new_cache(canvas, linear(4, full=1, local=1, known=12))
    single.full(canvas, cache, slice(12, 16))
    canvas.tokens[:, 12:14] = 6
    torch.testing.assert_close(
        single.local(canvas, cache, slice(12, 16), slice(14, 16)),
        single.full(canvas, None, slice(14, 16)),
        rtol=1e-5,
        atol=1e-5,
    )


def test_it_is_replayed_like_ours() -> None:
    pytest.importorskip("triton")
    from recap.engine.graphs import GraphedModel
    from tests.engine.test_engines import Pretended

    net, description = made(True, False, Rotary(), "")
    adapter, capture = wrap(net, description), Pretended()
    quick = GraphedModel(adapter, capture)
    schedule = linear(N, full=2, local=2)
    for _ in range(3):
        assert torch.equal(tiny.sample(quick, schedule), tiny.sample(adapter, schedule))
    assert capture.replayed


def test_padding_has_to_be_told_to_the_networks_own_forward() -> None:
    net, description = made(True, False, None, "module")
    adapter = wrap(net, replace(description, pad_id=1))
    assert isinstance(adapter, DescribedAdapter)
    with pytest.raises(ValueError, match="override forward"):
        adapter.forward(torch.ones(1, N, dtype=torch.long))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"q": "parts.query"}, "either qkv, or q, k and v"),
        ({"qkv": None}, "either qkv, or q, k and v"),
        ({"codes": None}, "codes="),
        ({"allowed_ids": (1, 2)}, "codes="),
        ({"words": None}, "words="),
        ({"norms": "between"}, "norms is 'between'"),
    ],
)
def test_descriptions_that_contradict_themselves_are_refused(wrong: dict[str, Any], match: str) -> None:
    _, description = made(False, True, None, "module")
    with pytest.raises(ValueError, match=match):
        replace(description, **wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"out": "proj"}, "inner.layers.0.proj"), ({"blocks": "layers"}, "layers"), ({"logits": "end.x"}, "end.x")],
)
def test_what_is_not_there_is_named(wrong: dict[str, Any], named: str) -> None:
    net, description = made(False, True, None, "module")
    with pytest.raises(ValueError, match=f"'{named}' of Stack"):
        wrap(net, replace(description, **wrong))
