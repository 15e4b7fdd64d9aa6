"""Compact weights: small, close, and refused when their parts do not belong together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from recap.checkpoints import load_pretrained, save_pretrained
from recap.checkpoints.int8 import LEAST, SCALE, compact, restore
from recap.models.registry import build
from tests.checkpoints.nets import CONFIGS, outputs, refused, small

SHAPES = [(64, 64), (1, 64, 70), (16, 32, 3, 3), (4096, 1), (2, 1, 4096), (1, 5000), (8, 1024)]
KEY = "encoder_blocks.0.attn.qkv.weight"


def random(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SHAPES), st.integers(0, 99), st.integers(-30, 30), st.booleans())
def test_error_is_at_most_half_a_step(shape: tuple[int, ...], seed: int, exponent: int, silent: bool) -> None:
    tensor = random(shape, seed) * 2.0**exponent
    tensor *= torch.logspace(-3, 3, shape[0]).view(-1, *[1] * (len(shape) - 1))  # every row of a size of its own
    if silent:
        tensor[0] = 0
    packed = compact({"w": tensor})
    assert packed["w"].dtype == torch.int8
    assert packed["w"].shape == tensor.shape
    rows = next((d for d, n in enumerate(shape) if n > 1), 0)
    assert packed["w" + SCALE].shape == (shape[rows],)
    assert packed["w" + SCALE].dtype == torch.float32
    back = restore(packed, "file")["w"]
    assert back.dtype == torch.float32
    error = (back - tensor).abs().transpose(0, rows).flatten(1).amax(1)
    assert (error <= packed["w" + SCALE] / 2 * (1 + 1e-4)).all()
    most = tensor.abs().transpose(0, rows).flatten(1).amax(1)
    torch.testing.assert_close(packed["w" + SCALE] * 127, most, rtol=1e-6, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-44])
def test_rows_that_int8_cannot_hold_stay_whole(value: float) -> None:
    tensor = random((64, 64))
    tensor[3] = value
    packed = compact({"w": tensor, "other": random((64, 64))})
    assert packed["w"].dtype == torch.float32
    assert torch.equal(packed["w"].nan_to_num(7.0), tensor.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("tensor", "dtype"),
    [
        (random((63, 65)), torch.float16),
        (random((5000,)), torch.float16),
        (torch.tensor([1.0, 65504.0]), torch.float16),
        (torch.tensor([1.0, 1e5]), torch.float32),
        (torch.tensor([1.0, 1.7e-7]), torch.float32),
        (torch.tensor([1.0, float("nan")]), torch.float32),
        (torch.tensor([3, 4]), torch.int64),
        (random((5,)).double(), torch.float16),
    ],
)
def test_small_tensors_are_shortened_where_that_is_safe(tensor: Tensor, dtype: torch.dtype) -> None:
    packed = compact({"w": tensor, "large": random((64, 64))})
    assert packed["w"].dtype == dtype
    assert "w" + SCALE not in packed
    back = restore(packed, "file")["w"]
    assert back.dtype == (torch.float32 if tensor.is_floating_point() else tensor.dtype)
    torch.testing.assert_close(back, tensor.to(back.dtype), rtol=2.0**-11, atol=0, equal_nan=True)


def test_networks_without_large_tensors_stay_exact() -> None:
    tensors = {"a": random((4, 4)), "b": random((LEAST - 1,)).bfloat16()}
    packed = compact(tensors)
    assert packed.keys() == tensors.keys()
    assert all(packed[key] is tensors[key] for key in tensors)


@pytest.mark.parametrize("kind", CONFIGS)
def test_folder_is_small_and_close(kind: str, tmp_path: Path) -> None:
    net = small(kind)
    whole = save_pretrained(net, tmp_path / "whole")
    folder = save_pretrained(net, tmp_path / "compact", compact=True, name="mine", sampling={"preset": "mar"})
    ratio = (folder / "model.safetensors").stat().st_size / (whole / "model.safetensors").stat().st_size
    assert ratio < 0.45  # a quarter of what is large; these networks are not
    loaded: Any = load_pretrained(folder)
    assert loaded.config == CONFIGS[kind]
    assert {value.dtype for value in loaded.state_dict().values()} <= {torch.float32, torch.int64}
    for key, value in net.state_dict().items():
        rough = value.abs().max() / 127
        assert (loaded.state_dict()[key] - value).abs().max() <= rough
    if kind not in ("vqgan", "mage"):  # rounding may move an image to the next code
        for ours, theirs in zip(outputs(loaded), outputs(net), strict=True):
            assert (ours - theirs).norm() < 0.2 * theirs.norm()


def test_saving_again_changes_nothing(tmp_path: Path) -> None:
    first = load_pretrained(save_pretrained(small("mar"), tmp_path / "a", compact=True))
    again = load_pretrained(save_pretrained(first, tmp_path / "b", compact=True))
    for key, value in first.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=1e-6, atol=0)


DAMAGE: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "scale missing": (lambda t: t.pop(KEY + SCALE), "not its"),
    "all scales missing": (lambda t: [t.pop(k) for k in list(t) if k.endswith(SCALE)], "not its"),
    "tensor missing": (lambda t: t.pop(KEY), "no tensor that belongs"),
    "too few scales": (
        lambda t: t.update({KEY + SCALE: t[KEY + SCALE][:-1].clone()}),
        "one float32 for each of its rows",
    ),
    "one scale": (lambda t: t.update({KEY + SCALE: torch.tensor(1.0)}), "one float32 for each of its rows"),
    "flat scales": (
        lambda t: t.update({KEY + SCALE: t[KEY + SCALE].unsqueeze(1)}),
        "one float32 for each of its rows",
    ),
    "half scales": (lambda t: t.update({KEY + SCALE: t[KEY + SCALE].half()}), "one float32 for each of its rows"),
    "float tensor": (lambda t: t.update({KEY: t[KEY].float()}), "one float32 for each of its rows"),
    "flat tensor": (lambda t: t.update({KEY: t[KEY].flatten()}), "one float32 for each of its rows"),
    "negative scale": (lambda t: t[KEY + SCALE][0].fill_(-1), "no scales"),
    "infinite scale": (lambda t: t[KEY + SCALE][0].fill_(float("inf")), "no scales"),
    "other shape": (lambda t: t.update({KEY: t[KEY][:, :-1].contiguous()}), "of another shape"),
    "a scale too many": (lambda t: t.update({"nothing" + SCALE: torch.ones(3)}), "nothing::scale"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_parts_that_do_not_belong_together_are_refused(damage: str, tmp_path: Path) -> None:
    folder = save_pretrained(build(CONFIGS["mar"]), tmp_path / "m", compact=True)
    tensors = load_file(folder / "model.safetensors")
    assert KEY + SCALE in tensors
    change, message = DAMAGE[damage]
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    assert message in refused(load_pretrained, folder)
