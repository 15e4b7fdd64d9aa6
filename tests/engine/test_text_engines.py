"""Engines give for texts what the plain model gives: shared keys, a tied head, rows before, prompts and padding."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.core.canvas import Canvas, Known
from recap.core.decode import grouped_decode
from recap.core.heads import CategoricalHead
from recap.core.noise import Noise, image_generators
from recap.core.options import SamplingOptions
from recap.core.orders import order_named
from recap.core.steps import Step
from recap.models.adapter import Adapter
from recap.models.registry import build, randomize
from recap.models.text import TextAdapter, TextConfig
from recap.pipelines import TextPipeline
from recap.verification.verifier import distance
from tests import tiny

pytest.importorskip("triton")
from recap.engine.fused import FusedCategoricalHead, fused
from recap.engine.graphs import GraphedModel, NoiseGraphs
from tests.engine.test_engines import DEVICE, capture, quick_model

SMALL: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "hidden": 48, "codes": 40, "mask_id": 39, "eos_id": 0}
CONFIGS = {
    "llada": TextConfig(kv_heads=4, **SMALL),
    "illada": TextConfig(kv_heads=2, tied=True, **SMALL),
    "dream": TextConfig(kv_heads=1, qkv_bias=True, shift=True, rotary="model", **SMALL),
}
SIZE = 16
RUNS = ("3+5", "2+6:preset=fast-dllm-dual", "2+6:preset=informed,block=8", "6:preset=llada", "3+5:guidance=1.5")
kinds = pytest.mark.parametrize("kind", CONFIGS)


def model(kind: str, length: int = SIZE) -> TextAdapter:
    adapter = TextAdapter(randomize(build(CONFIGS[kind])))
    adapter.module.to(DEVICE)
    return adapter.at(length)


def written(adapter: Adapter, text: str, prompts: tuple[int, int], seed: int = 0, noise: Any = Noise) -> Tensor:
    """Two texts of eight tokens each, behind prompts of these lengths."""
    return list(steps(adapter, text, prompts, seed, noise))[-1].raster()


def steps(
    adapter: Adapter, text: str, prompts: tuple[int, int], seed: int = 0, noise: Any = Noise
) -> Iterator[Canvas]:
    lengths, places = torch.tensor(prompts) + 8, torch.arange(adapter.num_tokens)
    masked = (places >= (lengths - 8)[:, None]) & (places < lengths[:, None])
    ids = (tiny.noise(2, seed + 50).uniform(adapter.num_tokens) * 39).long()
    options = SamplingOptions("text").override(SamplingOptions.from_text(text))
    schedule = options.schedule(8, adapter.num_tokens - 8)
    padded = lengths.to(DEVICE) if bool((lengths != adapter.num_tokens).any()) else None
    made = noise(image_generators(seed, range(2)), torch.device(DEVICE))
    selector = order_named(options.selector_name or "random", options.block)
    return grouped_decode(adapter, padded, schedule, selector, made, Known(ids.to(DEVICE), masked.to(DEVICE)))


@kinds
@pytest.mark.parametrize("text", RUNS)
@pytest.mark.parametrize("prompts", [(8, 8), (8, 3)])
def test_fused_writes_what_plain_writes(kind: str, text: str, prompts: tuple[int, int]) -> None:
    plain = model(kind)
    assert torch.equal(written(fused(plain), text, prompts), written(plain, text, prompts))


@kinds
def test_replayed_writes_what_plain_writes_again_and_again(kind: str) -> None:
    """Prompts of other lengths, padded or not, with and without guidance, take turns in the same memory."""
    plain, made = model(kind), capture()
    quick, noise = GraphedModel(quick_model(plain), made), NoiseGraphs(capture())
    cases = [(text, prompts) for text in RUNS for prompts in ((8, 8), (8, 3), (3, 8))]
    expected = {
        (case, seed): written(plain, *case, seed) for case in cases for seed in (1, 2)
    }  # every other token of a prompt differs
    for seed in (1, 2, 1, 2):
        for case in cases:
            assert torch.equal(written(quick, *case, seed, noise), expected[case, seed]), case
    if DEVICE == "cpu":
        assert made.replayed > made.captured > 0


@kinds
def test_replayed_writes_behind_prompts_of_other_numbers(kind: str) -> None:
    """As many tokens are known by the end of a run as by the beginning of another: a branch knows what was given."""
    plain = model(kind)
    quick = GraphedModel(quick_model(plain), capture())
    for seed in range(4):
        for known in (4, 8, 4, 12):
            assert torch.equal(guided(quick, known, seed), guided(plain, known, seed))


def guided(adapter: Adapter, known: int, seed: int) -> Tensor:
    ids = (tiny.noise(2, seed + 50).uniform(SIZE) * 39).long().to(DEVICE)
    masked = (torch.arange(SIZE) >= known).expand(2, -1).to(DEVICE)
    options = SamplingOptions("llada", full=SIZE - known, guidance=2.0)
    schedule = options.schedule(SIZE - known, known)  # a token a step: every number of decoded tokens is met
    noise = Noise(image_generators(seed, range(2)), torch.device(DEVICE))
    selector = order_named("confidence", None)
    *_, canvas = grouped_decode(adapter, None, schedule, selector, noise, Known(ids, masked))
    return canvas.raster()


@kinds
def test_other_lengths_have_graphs_of_their_own(kind: str) -> None:
    plain = model(kind, 512)
    quick = GraphedModel(quick_model(plain), capture())
    assert quick.num_tokens == 512
    runs = {length: quick.at(length) for length in (12, SIZE)}
    for seed in range(4):
        for length, own in runs.items():
            prompts = (length - 8, 2)
            assert torch.equal(written(own, "3+5", prompts, seed), written(plain.at(length), "3+5", prompts, seed))
    assert not quick.buffers
    assert all(own.num_tokens == length and own.buffers for length, own in runs.items())
    for own in runs.values():
        own.release()
        assert not own.buffers
        assert torch.equal(written(own, "3+5", (2, 2)), written(plain.at(own.num_tokens), "3+5", (2, 2)))


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 50.0])
def test_what_is_barred_is_never_drawn_and_has_no_share(
    branches: int, dtype: torch.dtype, temperature: float
) -> None:
    rows, codes, barred = 6, 40, 39
    logits = torch.randn(2 * branches, rows, codes, generator=torch.Generator().manual_seed(0))
    logits[..., barred] += 50.0  # surer of it than of anything else
    logits = logits.to(DEVICE, dtype)
    step = Step(rows, temperature=temperature, guidance=1.5 if branches == 2 else 1.0)
    numbers = tiny.numbers(2, rows, 0, DEVICE)
    plain, quick = (kind(torch.clone, barred=barred) for kind in (CategoricalHead, FusedCategoricalHead))
    theirs, ours = (head.draw(logits, step, branches, numbers) for head in (plain, quick))
    assert torch.equal(ours.values, theirs.values)
    assert not bool((ours.values == barred).any())
    assert ours.confidence is not None
    assert theirs.confidence is not None
    torch.testing.assert_close(ours.confidence, theirs.confidence, rtol=1e-4, atol=1e-4)
    for greedy in (Step(rows, 0.0, guidance=step.guidance), step):  # as if there were no such id
        with_it, without = (
            head.draw(logits, greedy, branches, numbers) for head in (quick, CategoricalHead(shorter))
        )
        if not greedy.temperature:
            assert torch.equal(with_it.values, without.values)
        sure = shorter(logits.float())
        both = sure if branches == 1 else sure[2:] + 1.5 * (sure[:2] - sure[2:])
        own = both.log_softmax(-1).gather(-1, with_it.values.unsqueeze(-1)).squeeze(-1)
        assert with_it.confidence is not None
        torch.testing.assert_close(with_it.confidence, own, rtol=1e-3, atol=2e-2)


def shorter(logits: Tensor) -> Tensor:
    return logits[..., :39]


@kinds
@torch.inference_mode()
def test_half_precision_stays_near_float32(kind: str) -> None:
    """Features within 1 % of float32, of full evaluations and local ones, in the root of the mean square."""
    ends = []
    for dtype, wrap in ((torch.float32, lambda plain: plain), (torch.float16, fused)):
        plain = model(kind)
        plain.module.to(dtype)
        adapter: Adapter = wrap(plain)
        order = tiny.noise(2).permutation(SIZE).to(DEVICE)
        lengths = torch.tensor([SIZE, SIZE], device=DEVICE)
        canvas = adapter.start(lengths if kind == "llada" else None, order, 2)
        canvas.commit(tiny.values(adapter, 2, 8))
        canvas.known = 4
        schedule = SamplingOptions("text", full=1, local=1).schedule(SIZE)
        cache = adapter.new_cache(canvas, schedule)
        parts = [adapter.full(canvas, cache, slice(8, SIZE))]
        canvas.commit(tiny.values(adapter, 2, 2, seed=3))
        parts.append(adapter.local(canvas, cache, slice(8, 14), slice(10, 14)))
        ends.append([part.float() for part in parts])
    for exact, half in zip(*ends, strict=True):
        error = (exact - half).square().mean().sqrt() / exact.square().mean().sqrt()
        assert error < 0.01


@kinds
def test_a_pipeline_of_texts_switches_there_and_back(kind: str) -> None:
    net = model(kind).module
    pipe = TextPipeline(net, batch_size=2)
    pipe.progress = False

    def texts() -> list[list[int]]:
        asked: Any = {"schedule": "3+5", "gen_length": 8, "seed": 3, "output_type": "ids", "guidance": 1.5}
        return [ids.tolist() for ids in pipe(input_ids=[[1, 2, 3], [4, 5, 6, 7, 8]], **asked).sequences]

    expected = texts()
    for engine in ("fused", "graphs", "eager") if DEVICE == "cuda" else ("fused", "eager"):
        pipe.compile(engine)
        for _ in range(3 if engine == "graphs" else 1):
            assert texts() == expected
    assert distance(torch.tensor(expected[0]), torch.tensor(texts()[0])) == 0
