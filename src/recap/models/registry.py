"""Families and published sizes by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recap.core.heads import CategoricalHead
from recap.models import mage, mar, maskgit, text
from recap.models.adapter import Adapter
from recap.models.described import DescribedAdapter, Description
from recap.models.family import Architecture, Family, listed, missing
from recap.models.family import Config as Config
from recap.models.layers import Block
from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig, kl_vae, vqgan
from recap.tokenizers.layers import tiny_tokenizer as tiny_tokenizer

TokenizerConfig = KLVAEConfig | VQGANConfig

FAMILIES: dict[str, Family] = {
    "mar": mar.FAMILY,
    "mage": mage.FAMILY,
    "maskgit": maskgit.FAMILY,
    "text": text.FAMILY,
}


TOKENIZERS: dict[str, Architecture] = {
    "kl-vae": Architecture(
        name="kl-vae",
        config=KLVAEConfig,
        network=KLVAE,
        sizes={"kl16": KLVAEConfig()},
        tiny=tiny_tokenizer,
        key="post_quant_conv.weight",
        infer=kl_vae.infer,
        clean=vqgan.clean,
    ),
    "vqgan": Architecture(
        name="vqgan",
        config=VQGANConfig,
        network=VQGAN,
        sizes={"vqgan-f16": VQGANConfig()},
        tiny=tiny_tokenizer,
        key="quantize.embedding.weight",
        infer=vqgan.infer,
        clean=vqgan.clean,
    ),
}
SIZES: dict[str, Config] = {name: size for family in FAMILIES.values() for name, size in family.sizes.items()}
TOKENIZER_SIZES: dict[str, TokenizerConfig] = {n: size for t in TOKENIZERS.values() for n, size in t.sizes.items()}


def architectures() -> dict[str, Architecture]:
    """Families and tokenizers by the name that model folders have for them."""
    return {**FAMILIES, **TOKENIZERS}


def architecture_of(config: object) -> Architecture | None:
    """The family or tokenizer of a configuration, or of a network that has one."""
    config = getattr(config, "config", config)
    return next((kind for kind in architectures().values() if isinstance(config, kind.config)), None)


def recognised(tensors: Mapping[str, Tensor]) -> Architecture | None:
    """The family or tokenizer whose own key is among those of a state dict."""
    return next((k for k in architectures().values() if k.key in tensors or k.official_key in tensors), None)


def family_of(config: object) -> Family:
    """The family of a configuration or of one of the library's networks."""
    found = architecture_of(config)
    if isinstance(found, Family):
        return found
    raise ValueError(
        f"{type(config).__name__} is not the configuration of a known family ({', '.join(FAMILIES)}); "
        f"give one of their networks, or an adapter with full() and local()"
    )


def size_name(name: str, others: Sequence[str] = ()) -> str:
    """The full name of a published size; `mar-l` and the like are understood, and `others` could be meant too."""
    key = name.lower().replace("_", "-")
    aliases = {alias: size for family in FAMILIES.values() for alias, size in family.aliases.items()}
    key = re.sub(r"-([blh])$", lambda m: {"b": "-base", "l": "-large", "h": "-huge"}[m[1]], aliases.get(key, key))
    if key in SIZES:
        return key
    near = get_close_matches(key, [*others, *SIZES], n=1, cutoff=0.0)[0]
    inside = f"With the package: {', '.join(others)}. " if others else ""
    raise ValueError(
        f"no model is called {name!r} and no such folder exists; did you mean {near!r}? "
        f"{inside}Published sizes: {', '.join(SIZES)}"
    )


def published_name(config: object) -> str | None:
    """What a published size is called."""
    return next((name for name, size in {**SIZES, **TOKENIZER_SIZES}.items() if size == config), None)


def usual_preset(model: Adapter) -> str:
    """The published schedule that suits a model: its family's, or that of the family which it is most like."""
    known = architecture_of(model.config)
    if isinstance(known, Family):
        return known.preset
    draws = "ids" if isinstance(model.head, CategoricalHead) else "latents"
    alike = [family for family in FAMILIES.values() if family.draws == draws and family.modality == "images"]
    return next((family for family in alike if family.conditional == model.guidable), alike[0]).preset


def wrap(model: nn.Module, description: Description | None = None, *, refresh_prefix: bool = False) -> Adapter:
    """An adapter over one of the library's networks or official MAR, MAGE, AutoNAT, LLaDA or Dream, for a pipeline.

    The family is known by the attributes that it needs; other models need a `Description`. The object stays as it is:
    it is not edited, patched or copied, its submodules are called as they are (with LoRA, quantized linears and the
    like in them), and its own forward is what `recap.verify` compares with. It has to be in evaluation mode; it is
    not put there. Hooks on a block or on an attention module as a whole do not run: these are called by their parts.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"wrap() takes a torch module; {type(model).__name__} is none")
    if description is not None:
        return DescribedAdapter(model, description, refresh_prefix=refresh_prefix)
    for family in FAMILIES.values():
        if isinstance(model, family.network):
            return family.adapter(model, refresh_prefix=refresh_prefix)
    known = [(family, needs) for family in FAMILIES.values() for needs in family.needs]
    nearest, needs = min(known, key=lambda kind: len(missing(model, kind[1])) / len(kind[1].split()))
    lacking = missing(model, needs)
    if lacking:
        others = f" (nor were {', '.join(lacking[1:5])})" if lacking[1:] else ""
        raise ValueError(
            f"{type(model).__name__} fits none of {', '.join(family.title for family in FAMILIES.values())}: the "
            f"nearest is {nearest.title}, for which the attribute {lacking[0]!r} was looked for and not "
            f"found{others}. "
            f"It has {listed(model)}. Give the model itself and not a wrapper around it, or write an adapter for it "
            f"(docs/plug-in.md)"
        )
    adapter = nearest.adapter(model, refresh_prefix=refresh_prefix)
    adapter.check_mode()
    return adapter


def adapt(model: nn.Module | Adapter, **options: Any) -> Adapter:
    """The adapter over a network, as `wrap` makes it; an adapter stays what it is."""
    return wrap(model, **options) if isinstance(model, nn.Module) else model


def tiny(config: Any) -> Any:
    """The same architecture, small enough for a laptop to run in a second."""
    return known_architecture(config).tiny(config)


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
    network = known_architecture(config).network
    if not meta:
        return network(config).eval()
    with torch.device("meta"), Shapes():
        return network(config).eval()


def known_architecture(config: object) -> Architecture:
    found = architecture_of(config)
    if found is None:
        raise ValueError(f"{type(config).__name__} is not the configuration of a known model")
    return found


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


@lru_cache
def count_parameters(config: Config | TokenizerConfig) -> int:
    return sum(parameter.numel() for parameter in build(config, meta=True).parameters())
