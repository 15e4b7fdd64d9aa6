"""Other people's model objects under grouped decoding, as they are."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from recap.models.adapter import Adapter
from recap.models.described import DescribedAdapter, Description
from recap.models.find import check_quiet, listed, missing
from recap.models.mage import MAGE, MAGEAdapter
from recap.models.mage.official import NEEDS as MAGE_NEEDS
from recap.models.mar import MAR, MARAdapter
from recap.models.mar.official import NEEDS as MAR_NEEDS
from recap.models.maskgit import MaskGIT, MaskGITAdapter
from recap.models.maskgit.official import NEEDS as MASKGIT_NEEDS

KNOWN: dict[str, tuple[tuple[str, ...], Callable[..., Adapter]]] = {
    "MAR": (MAR_NEEDS, MARAdapter),
    "MAGE": (MAGE_NEEDS, MAGEAdapter),
    "MaskGIT": (MASKGIT_NEEDS, MaskGITAdapter),
}
OURS: dict[type[nn.Module], Callable[..., Adapter]] = {MAR: MARAdapter, MAGE: MAGEAdapter, MaskGIT: MaskGITAdapter}


def accelerate(model: nn.Module, description: Description | None = None, *, refresh_prefix: bool = False) -> Adapter:
    """An adapter over an instance of the official MAR, MAGE or AutoNAT class, ready for a `Pipeline`.

    The family is told by the attributes that it needs; other models need a `Description`. The object stays as it is:
    it is not edited, patched or copied, its submodules are called as they are (with LoRA, quantized linears and the
    like in them), and its own forward is what `recap.verify` compares with. It has to be in evaluation mode; it is
    not put there. Hooks on a block or on an attention module as a whole do not run: these are called by their parts.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"accelerate() takes a torch module; {type(model).__name__} is none")
    if description is not None:
        return DescribedAdapter(model, description, refresh_prefix=refresh_prefix)
    for kind, adapter in OURS.items():
        if isinstance(model, kind):
            return adapter(model, refresh_prefix=refresh_prefix)
    lacking = {name: missing(model, needs) for name, (needs, _) in KNOWN.items()}
    name = min(KNOWN, key=lambda name: len(lacking[name]) / len(KNOWN[name][0]))
    if lacking[name]:
        more = len(lacking[name]) - 1
        rest = f" (nor were {more} others: {', '.join(lacking[name][1:4])}{', ...' * (more > 3)})" if more else ""
        raise ValueError(
            f"{type(model).__name__} fits none of {', '.join(KNOWN)}: the nearest is {name}, for which the attribute "
            f"{lacking[name][0]!r} was looked for and not found{rest}. It has {listed(model)}. Give the model itself "
            f"and not a wrapper around it, or write an adapter for it (docs/plug-in.md)"
        )
    check_quiet(model)
    return KNOWN[name][1](model, refresh_prefix=refresh_prefix)
