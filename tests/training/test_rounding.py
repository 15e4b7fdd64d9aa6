"""Rounding that minds the inputs: on the grid, kept exactly, and better than rounding each weight alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.checkpoints import load_pretrained, save_pretrained
from recap.checkpoints.int8 import compact, restore, row_scales
from recap.models.maskgit import MaskGITConfig
from recap.models.registry import build, randomize
from recap.training.families import IdsObjective, Tokens
from recap.training.loop import Recipe, Trainer
from recap.training.rounding import round_linear, rounded, rounded_to_keep

CONFIG = MaskGITConfig(64, 2, 2, num_tokens=16, codes=64, classes=3)


def inputs(rows: int, seed: int) -> Tensor:
    """Rows whose entries go together, as activations do."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(64, 64, generator=torch.Generator().manual_seed(9)) * torch.logspace(0.5, -1.5, 64)
    return torch.randn(rows, 64, generator=generator) @ mix.T


def test_outputs_change_less_than_by_plain_rounding() -> None:
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    scale = row_scales(weight)
    assert scale is not None
    seen, fresh = inputs(2000, 1), inputs(500, 2)
    ours = rounded(weight, scale, seen.T.double() @ seen.double())
    steps = ours / scale[:, None]
    assert (steps - steps.round()).abs().max() < 1e-3
    assert steps.abs().max() < 127.5
    plain = restore(compact({"w": weight}), "here")["w"]
    errors = [(fresh @ (other - weight).T).square().mean() for other in (ours, plain)]
    assert errors[0] < 0.5 * errors[1]
    flat = rounded(weight, scale, torch.eye(64, dtype=torch.float64))  # inputs that have nothing in common
    assert torch.allclose(flat, plain, atol=1e-6)


def test_rounded_weights_are_kept_exactly(tmp_path: Path) -> None:
    net: Any = randomize(build(CONFIG))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    ids = torch.randint(0, 64, (8, 16), generator=torch.Generator().manual_seed(0))
    scales = round_linear(net, lambda: net(ids, torch.zeros(8, dtype=torch.long)))
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert "in_blocks.0.attn.qkv.weight" in scales
    state = net.state_dict()
    assert all(torch.equal(value, state[key]) != (key in scales) for key, value in before.items())
    save_pretrained(net, tmp_path, compact=True, scales=scales)
    kept = load_pretrained(tmp_path).state_dict()
    for key in scales:
        assert torch.allclose(kept[key], state[key], rtol=1e-6, atol=0), key


def test_an_error_leaves_no_hook() -> None:
    net = nn.Sequential(nn.Linear(64, 64))

    def broken() -> None:
        net(torch.zeros(1, 64))
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        round_linear(net, broken)
    assert not net[0]._forward_pre_hooks


def test_layers_that_never_run_stay_as_they_are() -> None:
    used, unused = nn.Linear(64, 64), nn.Linear(64, 64)
    before = unused.weight.clone()
    assert list(round_linear(nn.ModuleDict({"used": used, "unused": unused}), lambda: used(inputs(50, 0)))) == [
        "used.weight"
    ]
    assert torch.equal(before, unused.weight)


def test_training_rounds_what_it_keeps() -> None:
    data = Tokens(torch.randint(0, 64, (6, 2, 16), dtype=torch.int32), torch.arange(6) % 3)
    net: Any = randomize(build(CONFIG))
    trainer = Trainer(IdsObjective(net, data, 4), Recipe(steps=2, batch=4))
    product, key = randomize(build(CONFIG), seed=3), "out_blocks.0.mlp.fc1.weight"
    before = product.state_dict()[key].clone()
    scale = rounded_to_keep(product, trainer)[key]
    after = product.state_dict()[key]
    steps = after / scale[:, None]
    assert (steps - steps.round()).abs().max() < 1e-3
    assert 0 < (after - before).abs().max() < 3 * scale.max()
