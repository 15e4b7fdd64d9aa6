"""Small networks of all five kinds whose files say everything but their heads, and what they compute."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.checkpoints import CheckpointError
from recap.cli import main
from recap.models.registry import SIZES, build, randomize, tiny
from recap.tokenizers import KLVAEConfig, VQGANConfig

HEADS = 4
KL = KLVAEConfig(channels=32, multipliers=(1, 2), latent_channels=4)
VQ = VQGANConfig(channels=32, multipliers=(1, 1, 2), latent_channels=8)
MAGE: Any = tiny(SIZES["mage-base"])
CONFIGS: dict[str, Any] = {
    "mar": tiny(SIZES["mar-base"]),
    "mage": replace(MAGE, vqgan=VQ),
    "mage-bare": replace(MAGE, vqgan=None, patch=0),
    "maskgit": tiny(SIZES["maskgit-large"]),
    "kl-vae": KL,
    "vqgan": VQ,
}
MODELS = ("mar", "mage", "mage-bare", "maskgit")


def small(kind: str, seed: int = 0) -> nn.Module:
    return randomize(build(CONFIGS[kind]), seed)


@torch.inference_mode()
def outputs(net: Any) -> list[Tensor]:
    """What a network makes of fixed input, by every path that uses its weights."""
    generator = torch.Generator().manual_seed(0)
    config = net.config
    if isinstance(config, KLVAEConfig | VQGANConfig):
        side = 4 * config.stride
        codes = net.encode(torch.rand(2, 3, side, side, generator=generator))
        return [codes, net.decode(codes)]
    masked = torch.rand(2, config.num_tokens, generator=generator) < 0.5
    if hasattr(config, "channels"):
        dtype = net.z_proj.weight.dtype
        tokens = torch.randn(2, config.num_tokens, config.channels, generator=generator).to(dtype)
        features = net(tokens, masked[:1].expand(2, -1), net.class_emb(torch.tensor([3, 7])))
        step = torch.tensor([5, 900])
        return [features, net.diffloss.net(tokens[:, 0], step, features[:, 0])]
    ids = torch.randint(config.codes, masked.shape, generator=generator).masked_fill(masked, config.mask_id)
    if hasattr(config, "classes"):
        return [net(ids, torch.tensor([3, config.null_class]))]
    return [net(ids), *([] if config.vqgan is None else outputs(net.vqgan))]


def same(ours: nn.Module, theirs: nn.Module) -> bool:
    """Whether two networks compute the same, to the last bit."""
    return all(map(torch.equal, outputs(ours), outputs(theirs)))


def recap(*argv: object) -> int:
    """The exit status of a command."""
    return main([str(word) for word in argv])


def refused(read: Any, path: Path, **options: Any) -> str:
    """The message with which `read` refuses `path`."""
    with pytest.raises(CheckpointError) as caught:
        read(path, **options)
    return str(caught.value)
