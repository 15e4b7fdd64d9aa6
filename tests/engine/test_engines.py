"""Engines give what the plain model gives; where there is no GPU, graphs are played by work that is done again."""

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from recap import Pipeline
from recap.core.canvas import Canvas, Known
from recap.core.decode import grouped_decode
from recap.core.memory import release
from recap.core.noise import Noise, image_generators
from recap.core.schedule import Schedule, from_counts
from recap.core.selection import InformedOrder
from recap.core.steps import Step
from recap.engine import ENGINES, default_engine, with_engine
from recap.models.adapter import Adapter
from recap.models.mar.diffusion import DiffusionHead
from recap.verification.verifier import distance
from tests import tiny

pytest.importorskip("triton")
from recap.engine import graphs
from recap.engine.fused import fused
from recap.engine.graphs import GraphedModel
from recap.models.mar.fused import FusedDiffusionHead, GraphedDiffusionHead, bucket

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Pretended:
    """Stands for CUDA graphs: what was captured is done again into the memory of the first result."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.captured += 1
        result = work().clone()

        def replay() -> None:
            self.replayed += 1
            result.copy_(work())

        return replay, result


def model(family: str) -> Adapter:
    bound: dict[str, Any] = {"token_bound": 2.0} if family == "mar" else {}
    adapter = tiny.model(family, **bound)
    adapter.module.to(DEVICE)
    return adapter


def quick_model(plain: Adapter) -> Adapter:
    """With fused kernels on a GPU; the interpreter takes minutes for what the rest of a test needs them not."""
    return fused(plain) if DEVICE == "cuda" else plain


def schedule(adapter: Adapter, chain: int = 2, **reuse: Any) -> Schedule:
    return from_counts(
        16,
        [1, 2, 3, 2, 4, 4],
        full=2,
        local=4,
        warmup=0,
        chain=chain,
        **reuse,
        choice_temperature=2.0,
        rank_temperature=1.0 if adapter.head.__class__.__name__.endswith("CategoricalHead") else None,
        guidance=1.5 if adapter.guidable else 1.0,
        head_steps=(3, 2),
    )


def labels_of(adapter: Adapter, batch: int = 2) -> Tensor | None:
    return torch.arange(batch, device=DEVICE) % adapter.classes if adapter.classes else None


def steps(adapter: Adapter, seed: int, batch: int = 2, noise: Any = Noise, informed: bool = False) -> Any:
    made = noise(image_generators(seed, range(batch)), torch.device(DEVICE))
    labels, selector = labels_of(adapter, batch), InformedOrder() if informed else adapter.selector()
    reuse: dict[str, Any] = {"target": 2.0, "coupled": True} if informed else {}
    return grouped_decode(adapter, labels, schedule(adapter, **reuse), selector, made)


def drawn(adapter: Adapter, seed: int, batch: int = 2, noise: Any = Noise, informed: bool = False) -> Tensor:
    canvas: Canvas
    *_, canvas = steps(adapter, seed, batch, noise, informed)
    return canvas.raster()


WAYS = [(family, False) for family in tiny.FAMILIES] + [("maskgit", True), ("mage", True)]
ways = pytest.mark.parametrize(("family", "informed"), WAYS)


def capture() -> Any:
    return graphs.CudaGraphs() if DEVICE == "cuda" else Pretended()


@ways
def test_fused_draws_what_plain_draws(family: str, informed: bool) -> None:
    plain = model(family)
    ours, theirs = (drawn(each, 3, informed=informed) for each in (fused(plain), plain))
    assert distance(ours, theirs) < 1e-5


@pytest.mark.parametrize("branches", [1, 2])
@torch.inference_mode()
def test_a_replayed_diffusion_draws_what_the_plain_one_draws(branches: int) -> None:
    plain = model("mar")
    assert isinstance(plain.head, DiffusionHead)
    head, made = plain.head, capture()
    replayed = FusedDiffusionHead(head.net, head.channels, head.bound).graphed(lambda: graphs.GraphCache(made))
    for seed, count, scale in ((0, 1, 1.5), (1, 1, 2.0), (2, 1, 1.0), (3, 1, 1.2), (5, 1, 2.0), (4, 13, 1.5)):
        features = torch.randn(branches, count, 32, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        solver = ("ancestral", "ddim")[seed % 2]
        step = Step(count, guidance=scale, temperature=0.9 + seed / 10, head_steps=3, solver=solver)
        expected, ours = (
            each.draw(features, step, branches, tiny.numbers(1, features.shape[1], seed, DEVICE)).values
            for each in (head, replayed)
        )
        assert distance(ours, expected) < 1e-5


@ways
def test_replayed_draws_what_plain_draws_again_and_again(family: str, informed: bool) -> None:
    plain, pretended = model(family), capture()
    quick, noise = GraphedModel(quick_model(plain), pretended), graphs.NoiseGraphs(capture())
    expected = {seed: drawn(plain, seed, informed=informed) for seed in (1, 2)}
    for seed in (1, 2, 1, 1, 2):
        assert distance(drawn(quick, seed, noise=noise, informed=informed), expected[seed]) < 1e-5
    if DEVICE == "cpu":
        assert pretended.replayed > pretended.captured > 0


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_replayed_runs_from_a_known_canvas_draw_what_plain_ones_draw(family: str) -> None:
    """Runs with nothing, more and less known take turns in the same memory."""
    plain = model(family)
    quick = GraphedModel(quick_model(plain), capture())
    tokens = tiny.values(plain, 2, 16).values.to(DEVICE)
    guidance = 1.5 if plain.guidable else 1.0

    def ended(adapter: Adapter, seed: int, masked: Tensor) -> Tensor:
        number = int(masked[0].sum())
        counts = [1, 1, 2, number - 4]
        shaped = from_counts(number, counts, full=2, local=2, warmup=0, guidance=guidance, head_steps=(3, 2))
        noise = Noise(image_generators(seed, range(2)), torch.device(DEVICE))
        canvas: Canvas
        *_, canvas = grouped_decode(
            adapter, labels_of(adapter), shaped, adapter.selector(), noise, Known(tokens, masked)
        )
        assert torch.equal(canvas.raster()[~masked], tokens[~masked])
        return canvas.raster()

    for seed in range(5):
        for number in (16, 11, 6, 11):
            masked = tiny.noise(2, seed).permutation(16).to(DEVICE) < number
            assert distance(ended(quick, seed, masked), ended(plain, seed, masked)) < 1e-5
        assert distance(drawn(quick, seed), drawn(plain, seed)) < 1e-5


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_runs_side_by_side_do_not_disturb_each_other(family: str) -> None:
    plain = model(family)
    quick, noise = GraphedModel(quick_model(plain), capture()), graphs.NoiseGraphs(capture())
    expected = {seed: drawn(plain, seed) for seed in (1, 2)}
    for _ in range(4):
        ends = {}
        for first, second in zip(steps(quick, 1, noise=noise), steps(quick, 2, noise=noise), strict=True):
            ends = {1: first, 2: second}
        assert all(distance(ends[seed].raster(), expected[seed]) < 1e-5 for seed in (1, 2))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_batches_of_other_sizes_and_runs_that_were_broken_off(family: str) -> None:
    plain = model(family)
    quick = GraphedModel(quick_model(plain), capture())
    for batch in (2, 3, 2, 1, 3, 2):
        next(steps(quick, 7, batch))  # left behind
        assert distance(drawn(quick, 5, batch), drawn(plain, 5, batch)) < 1e-5


def test_graphs_and_shapes_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_SHAPES", 2)
    record = graphs.GraphCache(Pretended(), limit=3)
    for _ in range(3):
        for key in range(10):
            assert record(key, lambda key=key: torch.tensor([key])).tolist() == [key]  # type: ignore[misc]
    assert len(record.graphs) == 3
    quick = GraphedModel(model("mage"), Pretended())
    for batch in (1, 2, 3, 4):
        quick.start(None, torch.arange(16, device=DEVICE).repeat(batch, 1), 1)
    assert len(quick.buffers) == 2


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_memory_that_is_kept_for_later_can_be_let_go(family: str) -> None:
    plain = model(family)
    quick = GraphedModel(quick_model(plain), capture())
    for _ in range(3):
        drawn(quick, 5)
    run = steps(quick, 5)
    canvas = next(run)
    kept = [weakref.ref(canvas.tokens)]
    if isinstance(quick.head, GraphedDiffusionHead):
        kept += [weakref.ref(tensor) for memory in quick.head.memory.values() for tensor in memory]
    quick.release()
    canvas = list(run)[-1]  # ends as it would have
    assert distance(canvas.raster(), drawn(plain, 5)) < 1e-5
    del canvas, run
    gc.collect()
    assert [tensor() for tensor in kept] == [None] * len(kept)
    release(torch.device(DEVICE))  # as it is done where memory did not suffice
    for _ in range(3):
        assert distance(drawn(quick, 5), drawn(plain, 5)) < 1e-5


def test_few_numbers_of_tokens_make_few_graphs() -> None:
    sizes = [bucket(count) for count in range(1, 257)]
    assert all(size >= count for count, size in enumerate(sizes, start=1))
    assert all(size <= 1.25 * count for count, size in enumerate(sizes, start=1))
    assert len(set(sizes)) < 35


def test_a_pipeline_switches_there_and_back() -> None:
    plain = model("maskgit")
    before = copy.deepcopy(plain.module.state_dict())
    pipe = Pipeline(plain)
    options: dict[str, Any] = {"labels": [0, 1], "seed": 3, "output_type": "latent", "schedule": schedule(plain)}
    pipe.progress = False
    expected = pipe(**options).tokens
    assert pipe.engine == default_engine(DEVICE)
    for engine in [name for name in ENGINES if name not in ("onednn", "float8")] if DEVICE == "cuda" else ["fused"]:
        assert pipe.compile(engine) is pipe
        assert pipe.engine == engine
        for _ in range(3 if engine == "graphs" else 1):
            assert torch.equal(pipe(**options).tokens, expected)
        assert pipe.to(torch.float32).engine == engine
    assert pipe.compile("eager").model is plain
    assert all(torch.equal(value, before[name]) for name, value in plain.module.state_dict().items())


@pytest.mark.skipif(DEVICE == "cuda", reason="is for machines without a GPU")
def test_engines_say_what_they_need() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device but the model is on cpu"):
        Pipeline(model("mage")).compile("graphs")
    with pytest.raises(ValueError, match="must be one of eager, onednn, fused, graphs, float8"):
        with_engine(model("mage"), "warp")


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a card with products of eight bits")
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_eight_bits_are_asked_for_in_bfloat16(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recap.engine.float8.MANY", 1)
    pipe = Pipeline(model(family))
    with pytest.raises(ValueError, match="bfloat16"):
        pipe.compile("float8")
    pipe.to(torch.bfloat16).compile("float8")
    assert drawn(pipe.model, 3).isfinite().all()


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_stays_near_float32(family: str, dtype: torch.dtype) -> None:
    """Features within 3 % (bfloat16) and 0.5 % (float16) of float32, in the root of the mean square."""
    exact = model(family)
    half = model(family)
    half.module.to(dtype)
    quick = quick_model(half) if dtype == torch.bfloat16 else fused(half)  # which the interpreter cannot do
    for decoded in (0, 8):
        ends = []
        for adapter in (exact, quick):
            canvas = adapter.start(labels_of(adapter), torch.arange(16, device=DEVICE).repeat(2, 1), 1)
            canvas.tokens[:, :decoded] = tiny.values(adapter, 2, decoded).values.to(DEVICE)
            canvas.decoded = decoded
            ends.append(adapter.full(canvas, None, slice(decoded, 16)).float())
        error = (ends[0] - ends[1]).square().mean().sqrt() / ends[0].square().mean().sqrt()
        assert error < (0.03 if dtype == torch.bfloat16 else 0.005)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_hundred_runs_leave_nothing_behind(family: str) -> None:
    quick = GraphedModel(quick_model(model(family)), capture())
    noise = graphs.NoiseGraphs(capture())
    kept = []
    for run in range(100 if DEVICE == "cuda" else 12):
        drawn(quick, run, noise=noise)
        if run >= 3:
            buffers = [each for same in quick.buffers.values() for each in same]
            graphs_kept = sum(len(each.graphs.graphs) for each in buffers)
            memory = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
            kept.append((len(buffers), graphs_kept, len(noise.graphs.graphs), memory))
    assert len(set(kept)) == 1
