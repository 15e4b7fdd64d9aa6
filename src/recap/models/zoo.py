"""Families and published sizes by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from recap.core.heads import CategoricalHead
from recap.core.protocols import Selector
from recap.core.selection import ConfidenceOrder, RandomOrder
from recap.models.accelerate import accelerate
from recap.models.adapter import Adapter
from recap.models.layers import Block
from recap.models.mage import MAGE, MAGEAdapter, MAGEConfig
from recap.models.mar import MAR, MARAdapter, MARConfig
from recap.models.maskgit import MaskGIT, MaskGITAdapter, MaskGITConfig
from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig

Config = MARConfig | MAGEConfig | MaskGITConfig
TokenizerConfig = KLVAEConfig | VQGANConfig


@dataclass(frozen=True, slots=True)
class Family:
    """What belongs together: sizes, network, adapter, and where to decode first."""

    name: str
    config: type[Any]
    net: Callable[[Any], nn.Module]
    adapter: Callable[..., Adapter]
    selector: Callable[[], Selector]
    setting: str  # the published schedule that suits it


FAMILIES: dict[str, Family] = {
    "mar": Family("mar", MARConfig, MAR, MARAdapter, RandomOrder, "mar-large"),
    "mage": Family("mage", MAGEConfig, MAGE, MAGEAdapter, ConfidenceOrder, "mage"),
    "maskgit": Family("maskgit", MaskGITConfig, MaskGIT, MaskGITAdapter, ConfidenceOrder, "maskgit-r"),
}
TOKENIZERS: dict[str, tuple[type[Any], Callable[[Any], nn.Module]]] = {
    "kl-vae": (KLVAEConfig, KLVAE),
    "vqgan": (VQGANConfig, VQGAN),
}
SIZES: dict[str, Config] = {
    "mar-base": MARConfig(),
    "mar-large": MARConfig(1024, 16, 16, heads=16, head_depth=8, head_width=1280),
    "mar-huge": MARConfig(1280, 20, 20, heads=16, head_depth=12, head_width=1536),
    "mage-base": MAGEConfig(),
    "mage-large": MAGEConfig(1024, 24, 8, heads=16, decoder_heads=16),
    "maskgit-large": MaskGITConfig(),
}
ALIASES = {"autonat-l": "maskgit-large", "autonat-large": "maskgit-large", "maskgit": "maskgit-large"}
TOKENIZER_SIZES: dict[str, TokenizerConfig] = {"kl16": KLVAEConfig(), "vqgan-f16": VQGANConfig()}


def size_name(name: str) -> str:
    """The full name of a published size; `mar-l` and the like are understood."""
    key = name.lower().replace("_", "-")
    key = re.sub(r"-([blh])$", lambda m: {"b": "-base", "l": "-large", "h": "-huge"}[m[1]], ALIASES.get(key, key))
    if key in SIZES:
        return key
    near = get_close_matches(key, SIZES, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"no model is called {name!r} and no such folder exists; did you mean {near!r}? "
        f"Published sizes: {', '.join(SIZES)}"
    )


def family_of(config: object) -> Family:
    """The family of a configuration or of one of the library's networks."""
    config = getattr(config, "config", config)
    for family in FAMILIES.values():
        if isinstance(config, family.config):
            return family
    raise ValueError(
        f"{type(config).__name__} is not the configuration of a known family ({', '.join(FAMILIES)}); "
        f"give one of their networks, or an adapter with full() and local()"
    )


def usual_setting(model: Adapter) -> str:
    """The published schedule that suits a model: its family's, or that of the family which it is most like."""
    for family in FAMILIES.values():
        if isinstance(model.config, family.config):
            return family.setting
    if not isinstance(model.head, CategoricalHead):
        return FAMILIES["mar"].setting
    return FAMILIES["maskgit" if model.guidable else "mage"].setting


def adapt(net: nn.Module, **options: Any) -> Adapter:
    """Full and local evaluations for one of the library's networks, or for an official object."""
    if not isinstance(net, MAR | MAGE | MaskGIT):
        return accelerate(net, **options)
    return family_of(net).adapter(net, **options)


def tiny(config: Config) -> Config:
    """The same architecture, small enough for a laptop to run in a second."""
    small: dict[str, Any] = {"width": 64, "heads": 4, "num_tokens": 64}
    if isinstance(config, MARConfig):
        small |= {"encoder_depth": 3, "decoder_depth": 3, "head_depth": 2, "head_width": 96, "buffer": 8}
        return replace(config, **small)
    if isinstance(config, MAGEConfig):
        small |= {"encoder_depth": 3, "decoder_depth": 2, "decoder_heads": 4}
        tokenizer = None if config.vqgan is None else tiny_tokenizer(config.vqgan)
        return replace(config, **small, vqgan=tokenizer)
    return replace(config, **small, depth=4)


def tiny_tokenizer(config: Any) -> Any:
    """The same tokenizer, small."""
    return replace(config, channels=16, groups=8, multipliers=(1, 1, 2))


class Shapes(TorchFunctionMode):
    """Leaves out random values: on the device `meta` some of them would import torch's compiler, for seconds."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__module__", None) == nn.init.__name__:
            return (*args, *(kwargs or {}).values())[0]  # the tensor
        return func(*args, **(kwargs or {}))


def build(config: Config | TokenizerConfig, *, meta: bool = False) -> nn.Module:
    """A network of this size, in evaluation mode; with `meta`, shapes without memory."""
    for kind, net in [*((f.config, f.net) for f in FAMILIES.values()), *TOKENIZERS.values()]:
        if isinstance(config, kind):
            if not meta:
                return net(config).eval()
            with torch.device("meta"), Shapes():
                return net(config).eval()
    raise ValueError(f"{type(config).__name__} is not the configuration of a known model")


@torch.no_grad()
def randomize(net: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with random numbers under which no part of the network is idle."""
    generator = torch.Generator().manual_seed(seed)
    depth = sum(isinstance(module, Block) for module in net.modules())
    for name, parameter in net.named_parameters():
        values = torch.empty(parameter.shape).normal_(generator=generator)
        if parameter.ndim == 1 and name.endswith(".weight"):
            values = 1 + 0.1 * values
        elif parameter.ndim == 1:
            values = 0.02 * values
        elif "emb" in name:  # embeddings and positions, of the size that training gives them
            values = 0.2 * values
        else:
            values = 0.5 * values * parameter[0].numel() ** -0.5
            if name.endswith(("attn.proj.weight", "mlp.fc2.weight")):  # deep stacks must not blow rounding up,
                values = values * depth**-0.5
            elif "final_layer" in name:  # nor a denoiser that was never trained to denoise
                values = 0.2 * values
        parameter.copy_(values)
    return net


def count_parameters(config: Config | TokenizerConfig) -> int:
    return sum(parameter.numel() for parameter in build(config, meta=True).parameters())


def field_names(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}
