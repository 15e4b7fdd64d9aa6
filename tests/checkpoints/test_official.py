"""Official layouts, from the file through `recap convert` to the same outputs."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from recap.checkpoints import load_official, load_pretrained, save_pretrained
from recap.checkpoints.folder import describe
from recap.models.registry import SIZES, TOKENIZER_SIZES, build, randomize, recognised
from tests.checkpoints.nets import CONFIGS, HEADS, KL, MODELS, VQ, outputs, recap, refused, same, small


def mar_training_file(net: nn.Module) -> dict[str, Any]:
    other = small("mar", seed=1)
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-4)
    return {
        "model": other.state_dict(),
        "model_ema": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 400,
        "scaler": {"scale": 65536.0},
        "args": argparse.Namespace(model="mar_base", lr=1e-4, betas=(0.9, 0.95), resume=None, device="cuda"),
    }


def muse_keys(state: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"mid.block_1": "mid.0", "mid.block_2": "mid.1", "upsample.conv": "upsample_conv"}
    renamed = {}
    for key, value in state.items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        renamed[key] = value
    assert len(renamed) == len(state)
    assert renamed.keys() != state.keys()
    return renamed


LAYOUTS: dict[str, tuple[str, Any]] = {
    "mar in training": ("mar", mar_training_file),
    "mar without an average": ("mar", lambda net: {"model": net.state_dict(), "model_ema": None}),
    "mar bare": ("mar", lambda net: net.state_dict()),
    "mage": ("mage", lambda net: {"model": net.state_dict()}),
    "mage without vqgan": ("mage-bare", lambda net: {"model": net.state_dict()}),
    "autonat": ("maskgit", lambda net: net.state_dict()),
    "autonat of old": (
        "maskgit",
        lambda net: {**net.state_dict(), "token_emb.position_ids": torch.arange(64), "position_ids": torch.arange(1)},
    ),
    "data parallel": ("maskgit", lambda net: {f"module.{key}": value for key, value in net.state_dict().items()}),
    "kl-16": ("kl-vae", lambda net: {"model": net.state_dict()}),
    "kl-16 with its losses": ("kl-vae", lambda net: {"model": net.state_dict() | {"loss.logvar": torch.zeros(1)}}),
    "vqgan bare": ("vqgan", lambda net: net.state_dict()),
    "vqgan wrapped": ("vqgan", lambda net: {"state_dict": net.state_dict(), "global_step": 7}),
    "vqgan of open-muse": ("vqgan", lambda net: muse_keys(net.state_dict())),
}


def convert(file: Path, out: Path, kind: str, dtype: torch.dtype | None = None) -> nn.Module:
    heads = HEADS if kind in MODELS else None
    return load_pretrained(save_pretrained(load_official(file, heads=heads, dtype=dtype), out))


def test_the_command_converts_a_file(tmp_path: Path) -> None:
    net = small("maskgit")
    torch.save(net.state_dict(), tmp_path / "official.pth")
    assert recap("convert", tmp_path / "official.pth", tmp_path / "out", "--heads", HEADS) == 0
    assert same(load_pretrained(tmp_path / "out"), net)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_converted_file_computes_the_same(layout: str, tmp_path: Path) -> None:
    kind, wrap = LAYOUTS[layout]
    net = small(kind)
    torch.save(wrap(net), tmp_path / "official.pth")
    converted = convert(tmp_path / "official.pth", tmp_path / "out", kind)
    assert converted.config == CONFIGS[kind]
    assert not converted.training
    assert same(converted, net)


@pytest.mark.parametrize("kind", CONFIGS)
def test_safetensors_files_convert_too(kind: str, tmp_path: Path) -> None:
    net = small(kind)
    save_file(net.state_dict(), tmp_path / "official.safetensors")
    assert same(convert(tmp_path / "official.safetensors", tmp_path / "out", kind), net)


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_convert_to_bfloat16(kind: str, tmp_path: Path) -> None:
    net = small(kind)
    torch.save({"model": net.state_dict()}, tmp_path / "a.pth")
    converted = convert(tmp_path / "a.pth", tmp_path / "out", kind, torch.bfloat16)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert set(written) == set(net.state_dict())
    for key, value in net.state_dict().items():
        converted_too = value.is_floating_point() and not key.startswith("vqgan.")  # a tokenizer inside stays
        assert torch.equal(written[key], value.to(torch.bfloat16) if converted_too else value)
        assert torch.equal(converted.state_dict()[key], written[key])
    assert all(out.isfinite().all() for out in outputs(converted))


def test_the_tokenizer_inside_a_mage_file_can_be_taken_out(tmp_path: Path) -> None:
    whole = build(SIZES["mage-base"], meta=True).state_dict()
    inside = randomize(build(TOKENIZER_SIZES["vqgan-f16"])).state_dict()
    few = {key: torch.zeros(1) for key in whole if not key.startswith("vqgan.")}
    torch.save({"model": few | {f"vqgan.{key}": value for key, value in inside.items()}}, tmp_path / "mage.pth")
    tokenizer = load_official(tmp_path / "mage.pth", model="vqgan-f16")
    assert all(torch.equal(value, inside[key]) for key, value in tokenizer.state_dict().items())


REFUSED: dict[str, tuple[str, Any, dict[str, Any], list[str]]] = {
    "another size": (
        "mar",
        lambda state: state,
        {"model": "mar-base"},
        [
            "does not fit MAR",
            "missing:\n  encoder_blocks.3.",
            "z_proj.weight (64, 16) instead of (768, 16)",
            "a mar of",
        ],
    ),
    "another family": (
        "vqgan",
        lambda state: state,
        {"model": "mage-base"},
        ["missing", "unexpected:\n  encoder.conv_in.weight", "looks like a vqgan of another size"],
    ),
    "a stranger": ("maskgit", lambda s: s | {"x": torch.zeros(1)}, {"heads": HEADS}, ["1 unexpected:\n  x"]),
    "a key lost": ("maskgit", lambda s: without(s, "norm.bias"), {"heads": HEADS}, ["1 missing:\n  norm.bias"]),
    "integers": (
        "maskgit",
        lambda s: s | {"norm.bias": s["norm.bias"].long()},
        {"heads": HEADS},
        ["norm.bias (64,) of integers instead of (64,)"],
    ),
    "no model": ("mar", lambda s: {"fc.weight": torch.zeros(1)}, {}, ["none of the known models", "keys: fc.weight"]),
    "heads twice": ("mar", lambda s: s, {"model": "mar-base", "heads": 4}, ["give either model or heads"]),
    **{
        f"no heads of {kind}": (kind, lambda s: s, {}, ["width 64 is no published size", "pass heads"])
        for kind in MODELS
    },
    **{f"bad heads of {kind}": (kind, lambda s: s, {"heads": 5}, ["heads"]) for kind in MODELS},
    **{
        f"incomplete {kind}": (kind, lambda s, key=key: without(s, key), {"heads": HEADS}, ["but is incomplete", key])
        for kind, key in (
            ("mar", "z_proj.weight"),
            ("mage", "token_emb.word_embeddings.weight"),
            ("maskgit", "context_embed.word_embeddings.weight"),
            ("kl-vae", "encoder.conv_in.weight"),
            ("vqgan", "encoder.down.1.block.0.conv1.weight"),
        )
    },
}


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name != key}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_do_not_fit_are_explained(case: str, tmp_path: Path) -> None:
    kind, change, options, parts = REFUSED[case]
    torch.save(change(dict(small(kind).state_dict())), tmp_path / "a.pth")
    message = refused(load_official, tmp_path / "a.pth", **options)
    assert all(part in message for part in parts), message


def test_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    torch.save(small("maskgit").state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="did you mean 'mar-large'"):
        load_official(tmp_path / "a.pth", model="mar-larg")


PUBLISHED: dict[str, Any] = {**SIZES, **TOKENIZER_SIZES}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_recognised(name: str) -> None:
    assert describe(build(PUBLISHED[name], meta=True).state_dict()) == name


@pytest.mark.parametrize(
    "config",
    [
        *CONFIGS.values(),
        replace(KL, encoder_blocks=1, decoder_blocks=2, multipliers=(1, 2, 3)),
        replace(VQ, blocks=1, codes=40, channels=64),
        replace(CONFIGS["mar"], encoder_depth=1, decoder_depth=4, channels=5, buffer=3, classes=7, num_tokens=9),
        replace(CONFIGS["maskgit"], depth=2, codes=33, classes=4, num_tokens=25),
        replace(
            CONFIGS["mage"], encoder_depth=1, class_slots=200, patch=4, num_tokens=9, vqgan=replace(VQ, blocks=1)
        ),
    ],
    ids=lambda config: type(config).__name__,
)
def test_every_size_that_a_file_tells_is_used(config: Any) -> None:
    tensors = build(config, meta=True).state_dict()
    kind = recognised(tensors)
    assert kind is not None
    assert kind.infer(tensors, HEADS) == config


@pytest.mark.parametrize("config", [replace(KL, channels=16, groups=8), replace(VQ, channels=48, groups=16)])
def test_conversion_refuses_small_norm_groups(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(build(config).state_dict(), tmp_path / "a.ckpt")
    assert recap("convert", tmp_path / "a.ckpt", tmp_path / "out") == 2
    assert f"{config.channels} channels, which the 32 norm groups" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_failed_conversion_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(small("vqgan").state_dict(), tmp_path / "a.ckpt")
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert recap("convert", tmp_path / "a.ckpt", out) == 2
        error = capsys.readouterr().err
        assert error.startswith("recap convert: ")
        assert str(out) in error
    assert (tmp_path / "file").read_text() == "in the way"
