"""Drift of context features, errors of local evaluations, and the command that measures both."""

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.cli import drift as command
from recap.core.canvas import take
from recap.core.schedule import cosine
from recap.evaluation.drift import Drift, context_features, cosine_similarity, feature_drift, reveal
from recap.evaluation.error import ErrorLog, evaluation_error, local_error
from recap.models.adapter import Adapter
from recap.models.layers import Block
from recap.runs import draw
from tests import tiny
from tests.evaluation.test_plots import picture
from tests.pipelines.test_pipeline import SCHEDULE, equal, pipeline, request, shared, state

LAYERS = {"mar": 5, "mage": 5, "maskgit": 5}
NOTHING = {"mar": 1e-5, "mage": 1e-10, "maskgit": 1e-10}  # a divergence is the square of a distance
GUIDED = cosine(16, full=4, local=3, choice_temperature=2.0, head_steps=(4, 3), guidance=3.0)


def tokens(adapter: Adapter, batch: int = 3) -> Tensor:
    return tiny.values(adapter, batch, adapter.num_tokens).values


def hooks(net: nn.Module) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in net.modules())


def drift_of(family: str, adapter: Adapter | None = None, **options: Any) -> Drift:
    adapter = adapter or tiny.model(family)
    return feature_drift(adapter, tokens(adapter), tiny.labels(adapter, 3), **options)


@contextmanager
def norms(net: nn.Module, into: dict[str, Tensor]) -> Iterator[None]:
    """Collect what each block's first norm gives: the same features by another way."""

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        return lambda _, __, out: into.__setitem__(f"{name}.attn", out)

    blocks = [(name, module) for name, module in net.named_modules() if isinstance(module, Block)]
    handles = [block.norm1.register_forward_hook(keep(name)) for name, block in blocks]
    yield
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_drift_is_what_the_plain_forward_shows_position_by_position(family: str) -> None:
    adapter, k, n = tiny.model(family), 3, 5
    values, labels = tokens(adapter), tiny.labels(adapter, 3)
    found = feature_drift(adapter, values, labels, [k], [n], seed=7, batch=3)
    vectors: list[dict[str, Tensor]] = []
    for canvas in reveal(adapter, values, labels, [k, k + n], tiny.noise(3, 7)):
        seen: dict[str, Tensor] = {}
        with norms(adapter.module, seen):
            adapter.plain(canvas, labels)
        context, masked = canvas.order[:, :k], canvas.masked
        among = ((~masked).cumsum(1) - 1).gather(1, context)  # their places among the known tokens
        pooled = {}
        for name, x in seen.items():
            shown = (among, canvas.decoded) if name.startswith("encoder_") else (context, 16)
            pooled[name] = take(x, shown[0] + x.shape[1] - shown[1]).mean(1)
        vectors.append(pooled)
        assert torch.equal(take(canvas.raster(), context), take(values, context))
    before, after = vectors
    assert found.layers == list(before)
    assert len(found.layers) == LAYERS[family]
    expected = [float(F.cosine_similarity(before[name], after[name]).mean()) for name in found.layers]
    assert found.similarity[0][0] == pytest.approx(expected, abs=1e-6)
    assert min(expected) < 0.9999  # else the comparison says nothing


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_similarity_is_1_without_an_update_and_a_cosine_otherwise(family: str) -> None:
    drift = drift_of(family, contexts=(2, 4, 12), updates=(0, 1, 4, 8))
    assert [len(rows) for rows in drift.similarity] == [4, 4, 3]
    for rows, mean, spread in zip(drift.similarity, drift.mean, drift.spread, strict=True):
        assert rows[0] == [1.0] * LAYERS[family]
        assert all(-1 <= value <= 1 for layers in rows for value in layers)
        assert min(rows[-1]) < 1
        assert mean == pytest.approx([np.mean(layers) for layers in rows])
        assert spread == pytest.approx([np.std(layers) for layers in rows])
    assert json.loads(json.dumps(drift.json()))["similarity"] == drift.similarity


@torch.no_grad()
def test_similarity_is_exactly_1_when_the_shown_tokens_look_like_masks() -> None:
    adapter = tiny.model("maskgit")
    words = adapter.module.get_parameter("token_emb.word_embeddings.weight")
    words[0] = words[adapter.config.mask_id]
    blank = torch.zeros(3, 16, dtype=torch.long)
    drift = feature_drift(adapter, blank, tiny.labels(adapter, 3))
    assert drift.contexts == [2, 4, 8]
    assert drift.updates == [1, 2, 4, 8]
    assert all(value == 1.0 for rows in drift.similarity for layers in rows for value in layers)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.no_grad()
def test_context_that_cannot_look_around_does_not_move(family: str) -> None:
    adapter = tiny.model(family)
    assert min(min(layers) for rows in drift_of(family, adapter).similarity for layers in rows) < 0.999
    for module in adapter.module.modules():
        if isinstance(module, Block):
            module.attn.proj.weight.zero_()
            module.attn.proj.bias.zero_()
    for rows in drift_of(family, adapter).similarity:
        assert rows == [pytest.approx([1.0] * LAYERS[family], abs=1e-6)] * len(rows)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_hooks_are_gone_afterwards_and_the_network_is_as_before(family: str) -> None:
    adapter = tiny.model(family)
    before = state(adapter.module)
    drift_of(family, adapter)
    assert hooks(adapter.module) == 0
    assert equal(before, state(adapter.module))


def test_hooks_are_gone_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tiny.model("maskgit")
    there: list[int] = []

    def broken(x: Tensor) -> Tensor:
        there.append(hooks(adapter.module))
        raise RuntimeError("out of order")

    monkeypatch.setattr(adapter.module.get_submodule("mid_block.norm2"), "forward", broken)
    with pytest.raises(RuntimeError, match="out of order"):
        drift_of("maskgit", adapter)
    assert there == [LAYERS["maskgit"]]
    assert hooks(adapter.module) == 0
    adapter.module = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="Linear has no attention"):
        context_features(adapter, tiny.canvas(tiny.model("maskgit")), [2])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_drift_depends_on_the_seed_and_not_on_the_batch(family: str) -> None:
    whole = drift_of(family, batch=3)
    parts = drift_of(family, batch=2)
    for ours, theirs in zip(whole.similarity, parts.similarity, strict=True):
        assert [pytest.approx(row, abs=1e-5) for row in ours] == theirs
    assert drift_of(family, seed=1).similarity != whole.similarity


@pytest.mark.parametrize("family", ["mar", "maskgit"])
@torch.inference_mode()
def test_without_labels_the_unconditional_branch_is_measured(family: str) -> None:
    adapter = tiny.model(family)
    values = tokens(adapter)
    canvases = [
        next(reveal(adapter, values, labels, [5], tiny.noise(3)))
        for labels in (None, torch.tensor([1, 2, 3]), torch.tensor([3, 0, 4]))
    ]
    none, some, others = (context_features(adapter, canvas, [4])[4] for canvas in canvases)
    last = list(none)[-1]
    assert not torch.allclose(some[last], others[last], atol=1e-4)  # labels do show
    guided = adapter.start(torch.tensor([1, 2, 3]), canvases[0].order, 2)
    guided.tokens, guided.decoded = canvases[0].tokens, 5
    torch.testing.assert_close(context_features(adapter, guided, [4])[4][last], none[last])
    assert not torch.allclose(some[last], none[last], atol=1e-4)


def test_cosine_is_the_usual_one_and_exact_for_equal_vectors() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, 7, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(cosine_similarity(a, b), F.cosine_similarity(a, b))
    assert cosine_similarity(a, a).eq(1).all()
    assert cosine_similarity(a, -a).ge(-1).all()


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_measuring_errors_leaves_the_images_as_they_are(family: str) -> None:
    pipe, schedule = shared(family), SCHEDULE if family == "mage" else GUIDED
    local = pipe.model.local
    watched = copy.copy(pipe)
    watched.model = ErrorLog(pipe.model, schedule)
    plain, ours = (p(**request(family), schedule=schedule, seed=3, output_type="pt") for p in (pipe, watched))
    assert torch.equal(plain.tokens, ours.tokens)
    assert torch.equal(plain.images, ours.images)
    assert pipe.model.local == local


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rows_say_where_in_the_run_they_were_measured(family: str) -> None:
    pipe, schedule = shared(family), SCHEDULE
    rows, _ = local_error(pipe, pipe.works(request(family, 3).get("labels"), 3, schedule, seed=1))
    expected, decoded, number = [], 0, 0
    for group in schedule:
        for index, step in enumerate(group.steps):
            number += 1
            if index:
                expected.append((number, decoded / 16, group.tokens, step.tokens))
            decoded += step.tokens
    assert [(row.step, row.decoded, row.rows, row.tokens) for row in rows] == expected
    assert all(100 * NOTHING[family] < row.mean <= row.max for row in rows)
    assert any(row.mean < row.max for row in rows)


def test_images_that_are_drawn_again_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends after the first local evaluation of four images, and the last batch is filled up."""
    monkeypatch.setattr(draw, "ALONE", ())  # as on a GPU
    sizes: list[int] = []

    def note(kind: str, features: Tensor) -> None:
        if kind == "local":
            sizes.append(len(features))
            if sizes == [4, 4]:
                raise MemoryError

    rows = []
    for batch in (2, 4):
        pipe = pipeline("mage")
        pipe.model, pipe.batch_size = tiny.Spied(pipe.model, note), batch
        sizes.clear()
        rows.append(local_error(pipe, pipe.works(None, 3, "4+3", seed=1))[0])
    assert sizes == [4, 4, *[2] * 6]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_error_is_0_until_something_changes(family: str) -> None:
    adapter = tiny.model(family)
    canvas = tiny.canvas(adapter)
    canvas.commit(tiny.values(adapter, 2, 4))
    cache = adapter.new_cache(canvas, SCHEDULE)
    rows, wanted = slice(4, 10), slice(6, 10)
    adapter.full(canvas, cache, rows)

    def error(guidance: float) -> Tensor:
        return evaluation_error(adapter, canvas, adapter.local(canvas, cache, rows, wanted), wanted, guidance)

    assert error(1.0).shape == (2,)
    assert error(1.0).max() <= NOTHING[family]
    assert error(3.0).max() <= NOTHING[family]
    canvas.commit(tiny.values(adapter, 2, 2, seed=5))
    assert error(1.0).min() > 100 * NOTHING[family]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_single_layer_has_no_error(family: str) -> None:
    pipe = pipeline(family)
    pipe.model = pipe.model.single_layer()
    rows, _ = local_error(pipe, pipe.works(request(family).get("labels"), 2, SCHEDULE, seed=0))
    assert max(row.max for row in rows) <= NOTHING[family]


@torch.inference_mode()
def test_error_of_ids_is_the_divergence_of_what_is_drawn_from() -> None:
    adapter = tiny.model("maskgit")
    canvas, wanted = tiny.canvas(adapter), slice(3, 7)
    other = torch.randn(4, 4, 32, generator=torch.Generator().manual_seed(0))

    def distribution(features: Tensor) -> Tensor:
        conditional, null = adapter.prediction(features).chunk(2)
        return (null + 2.5 * (conditional - null)).softmax(-1)

    exact, ours = distribution(adapter.full(canvas, None, wanted)), distribution(other)
    expected = (exact * (exact / ours).log()).sum(-1).mean(-1)
    torch.testing.assert_close(evaluation_error(adapter, canvas, other, wanted, 2.5).float(), expected)


@torch.inference_mode()
def test_error_of_latents_is_relative_image_by_image() -> None:
    adapter = tiny.model("mar")
    canvas, wanted = tiny.canvas(adapter), slice(3, 7)
    exact = adapter.full(canvas, None, wanted)  # (4, 4, D): two branches of two images
    scale = torch.tensor([1.5, 1.25, 1.5, 1.25]).view(4, 1, 1)
    found = evaluation_error(adapter, canvas, scale * exact, wanted)
    torch.testing.assert_close(found.float(), torch.tensor([0.5, 0.25]))


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    command.arguments(parser)
    return command.run(parser.parse_args(argv))


@pytest.mark.parametrize("name", ["mar-base", "mage-base", "maskgit-large"])
def test_command_measures_generated_images(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    assert run("--model", name, "--tiny", "--num", "2", "--full", "3", "--local", "2", "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "generated by the model itself, 3+2" in printed
    assert "3+2 evaluations" in printed
    assert sorted(path.name for path in out.iterdir()) == ["drift.json", "drift.png", "error.json", "error.png"]
    drift, error = (json.loads((out / file).read_text()) for file in ("drift.json", "error.json"))
    assert (drift["contexts"], drift["samples"], drift["updates"][-1]) == ([2, 4, 8, 16, 32], 2, 32)
    assert f"{drift['mean'][0][0]:.4f} ± {drift['spread'][0][0]:.4f}" in printed
    assert (error["schedule"], len(error["rows"])) == ("3+2", 2)
    assert f"to {max(row['mean'] for row in error['rows']):.2e}" in printed
    picture(out / "drift.png")
    picture(out / "error.png")


def test_command_without_local_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    argv = ("--model", "maskgit-large", "--tiny", "--full", "4", "--num", "3", "--labels", "3", "--batch", "2")
    assert run(*argv, "--out", str(out)) == 0
    assert "plain decoding" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["drift.json", "drift.png"]


def test_command_refuses_nonsense(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    with pytest.raises(ValueError, match="--num is 0"):
        run("--model", "mage-base", "--tiny", "--num", "0", *out)
    with pytest.raises(ValueError, match="tokens"):
        run("--model", "mage-base", "--tiny", "--full", "99", *out)
    assert not (tmp_path / "out").exists()
