"""Configurations from keys and shapes alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recap.checkpoints import CheckpointError
from recap.checkpoints.identify import describe, infer
from recap.models.registry import SIZES, TOKENIZER_SIZES, build
from tests.checkpoints.nets import CONFIGS, HEADS, KL, MODELS, VQ

PUBLISHED: dict[str, Any] = {**SIZES, **TOKENIZER_SIZES}


def keys(config: Any) -> dict[str, Tensor]:
    return dict(build(config, meta=True).state_dict())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_are_recognised(name: str) -> None:
    tensors = keys(PUBLISHED[name])
    assert infer(tensors) == PUBLISHED[name]
    assert describe(tensors) == name


@pytest.mark.parametrize("kind", CONFIGS)
def test_small_sizes_are_measured(kind: str) -> None:
    assert infer(keys(CONFIGS[kind]), heads=HEADS) == CONFIGS[kind]


@pytest.mark.parametrize(
    "config",
    [
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
    assert infer(keys(config), heads=HEADS) == config


@pytest.mark.parametrize("kind", MODELS)
def test_unpublished_width_needs_heads(kind: str) -> None:
    with pytest.raises(CheckpointError, match=r"width 64 is no published size .* pass heads"):
        infer(keys(CONFIGS[kind]))


@pytest.mark.parametrize("config", [replace(KL, channels=16, groups=8), replace(VQ, channels=48, groups=16)])
def test_groups_that_cannot_be_the_published_ones_are_refused(config: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{config.channels} channels.*a file does not say"):
        infer(keys(config))


@pytest.mark.parametrize("kind", MODELS)
def test_impossible_heads_are_refused(kind: str) -> None:
    with pytest.raises(CheckpointError, match="heads"):
        infer(keys(CONFIGS[kind]), heads=5)


def test_mage_without_its_tokenizer_is_described() -> None:
    assert describe(keys(replace(PUBLISHED["mage-large"], vqgan=None))) == "mage-large without its tokenizer"


def test_strangers_are_described() -> None:
    assert describe({"fc.weight": torch.zeros(2, 2)}) == "no model that this library knows"
    with pytest.raises(CheckpointError, match=r"none of the known models .* first keys: fc\.weight"):
        infer({"fc.weight": torch.zeros(2, 2)})


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        ("mar", "z_proj.weight"),
        ("mage", "token_emb.word_embeddings.weight"),
        ("maskgit", "context_embed.word_embeddings.weight"),
        ("kl-vae", "encoder.conv_in.weight"),
        ("vqgan", "encoder.down.1.block.0.conv1.weight"),
    ],
)
def test_incomplete_files_are_refused(kind: str, needed: str) -> None:
    tensors = keys(CONFIGS[kind])
    del tensors[needed]
    with pytest.raises(CheckpointError, match=f"looks like {kind} but is incomplete.*{needed}"):
        infer(tensors, heads=HEADS)
