"""The laws hold for language models, and each of them catches those that break it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recap.core import attention
from recap.core.attention import Ops
from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas
from recap.models.adapter import Adapter
from recap.models.registry import SIZES, build, randomize, tiny
from recap.models.text import TextAdapter
from recap.models.text import adapter as text
from recap.verification.verifier import verify

NAMES = ("llada-8b", "illada-8b", "dream-7b")
PLAIN = "full evaluation = plain forward"
SAME, ALL, ONE = (
    "local with nothing changed = full",
    "local over all rows = full",
    "one layer: local = full after commits",
)
LENGTHS = "texts of unequal length = each alone"


def made(name: str, kind: type[TextAdapter] = TextAdapter, seed: int = 0, length: int = 24) -> TextAdapter:
    return kind(randomize(build(tiny(SIZES[name])), seed)).at(length)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seed", "length"), [(0, 24), (1, 17), (2, 64)])
def test_all_checks_pass(name: str, seed: int, length: int) -> None:
    report = verify(made(name, seed=seed, length=length), seed=seed)
    assert report.ok, report
    assert LENGTHS in {check.name for check in report}


def test_long_texts_are_checked_at_a_short_length() -> None:
    model = TextAdapter(build(tiny(SIZES["dream-7b"]), meta=True))
    assert (model.num_tokens, model.short().num_tokens, model.at(20).short().num_tokens) == (512, 64, 20)


class SeesPadding(TextAdapter):
    """Attends to what fills texts up."""

    def _seeing(self, canvas: Canvas) -> Ops:
        return self.ops


class SeesPaddingLocally(TextAdapter):
    def local(self, canvas: Canvas, cache: ContextCache, rows: slice, wanted: slice) -> Tensor:
        seen, canvas.condition = canvas.condition, None
        features = super().local(canvas, cache, rows, wanted)
        canvas.condition = seen
        return features


class PaddingByRow(TextAdapter):
    """Takes arrival rows for positions."""

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        canvas = super().start(labels, order, branches)
        if labels is not None:
            canvas.condition = torch.arange(order.shape[1]) < labels[:, None]
        return canvas


class ForwardSeesPadding(TextAdapter):
    def forward(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        return super().forward(ids)


class KeepsThePrompt(TextAdapter):
    """Its second branch knows the prompt."""

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        known, canvas.known = canvas.known, 0
        features = super().evaluate(canvas, cache, rows, wanted, whole)
        canvas.known = known
        return features


class KeepsThePromptLocally(KeepsThePrompt):
    def full(self, canvas: Canvas, cache: ContextCache | None, wanted: slice) -> Tensor:
        return TextAdapter.evaluate(self, canvas, cache, slice(0, canvas.size), wanted, whole=True)


class TurnsByRow(TextAdapter):
    """Rotates by arrival rows."""

    def through(
        self, x: Tensor, positions: Tensor, cache: ContextCache | None, renewed: Rows, only: slice | None, ops: Ops
    ) -> Tensor:
        return super().through(x, torch.arange(x.shape[1]).expand_as(positions), cache, renewed, only, ops)


class TurnsInHalves(TextAdapter):
    """Rotates what it stores by half."""

    def through(
        self, x: Tensor, positions: Tensor, cache: ContextCache | None, renewed: Rows, only: slice | None, ops: Ops
    ) -> Tensor:
        local = cache is not None and x.shape[1] < self.num_tokens
        return super().through(x, positions // 2 if local else positions, cache, renewed, only, ops)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("broken", "checks"),
    [
        (SeesPadding, {LENGTHS}),
        (SeesPaddingLocally, {LENGTHS}),
        (PaddingByRow, {LENGTHS}),
        (ForwardSeesPadding, {LENGTHS}),
        (KeepsThePrompt, {PLAIN}),
        (KeepsThePromptLocally, {ALL}),
        (TurnsByRow, {PLAIN}),
        (TurnsInHalves, {SAME}),
    ],
)
def test_broken_models_fail_the_checks(name: str, broken: type[TextAdapter], checks: set[str]) -> None:
    assert checks <= failed(made(name, broken))


def failed(model: Adapter) -> set[str]:
    return {check.name for check in verify(model) if not check.ok}


def own_rows(canvas: Canvas, wanted: slice) -> Tensor:
    """Rows that predict themselves."""
    return torch.arange(wanted.start, wanted.stop).expand(canvas.batch, -1)


def neighbours(canvas: Canvas, wanted: slice) -> Tensor:
    """Rows before those that are wanted, in the order of arrival."""
    return (own_rows(canvas, wanted) - 1).clamp(min=0)


def other_heads(ops: Ops, q: Tensor, k: Tensor, v: Tensor, shared: int) -> Tensor:
    """Heads that share a key head, but not neighbours."""
    k, v = (part.repeat(1, shared, 1, 1) for part in (k, v))
    return ops.attention(q, k, v)


@pytest.mark.parametrize(
    ("owner", "part", "broken", "name"),
    [
        (text, "predecessors", own_rows, "dream-7b"),
        (text, "predecessors", neighbours, "dream-7b"),
        (attention, "by_key_head", other_heads, "illada-8b"),
        (attention, "by_key_head", other_heads, "dream-7b"),
    ],
)
def test_broken_parts_fail_the_checks(
    owner: Any, part: str, broken: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = tiny(SIZES[name])
    model = made(name) if part == "predecessors" else TextAdapter(randomize(build(wider(sizes)))).at(24)
    monkeypatch.setattr(owner, part, broken)
    assert PLAIN in failed(model)


def wider(config: Any) -> Any:
    """With two key heads: where there is one alone, no other can be meant."""
    return type(config)(**{**{n: getattr(config, n) for n in config.__dataclass_fields__}, "kv_heads": 2})


def test_stale_predecessors_fail_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local evaluations that ask the rows before without renewing what they ask by."""
    model, through = made("dream-7b"), TextAdapter.through

    def stale(
        self: TextAdapter, x: Tensor, positions: Tensor, cache: Any, renewed: Rows, only: slice | None, ops: Ops
    ) -> Tensor:
        if only is not None and cache is not None and only.start:
            x = torch.cat([x[:, : only.start], x[:, only].roll(1, dims=1)], dim=1)
        return through(self, x, positions, cache, renewed, only, ops)

    monkeypatch.setattr(TextAdapter, "through", stale)
    assert failed(model) >= {SAME, ONE}
