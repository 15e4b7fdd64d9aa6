"""Ways to run the same model: as torch does it, with packed weights, fused kernels, or these replayed from graphs.

`onednn` is for CPUs, and the default there; `fused` and `graphs` are for NVIDIA cards.
`float8` is `graphs` with the large matrix products in eight bits: the one engine whose results are other ones.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import torch

from recap.core.noise import Noise
from recap.engine.packed import PackedModel, available
from recap.models.adapter import Adapter

ENGINES = ("eager", "onednn", "fused", "graphs", "float8")
# runs of one shape until nothing is set up any more
WARM_RUNS = {"eager": 1, "onednn": 1, "fused": 1, "graphs": 2, "float8": 2}


def with_engine(model: Adapter, engine: str) -> Adapter:
    """The model as `engine` runs it, over the same network; the one that is given stays as it is."""
    check_engine(engine, model.device)
    if engine == "eager":
        return model
    if engine == "onednn":
        return PackedModel(model)
    from recap.engine.fused import fused  # needs Triton, which comes with torch where there is a GPU

    if engine == "fused":
        return fused(model)
    from recap.engine.graphs import GraphedModel

    if engine == "graphs":
        return GraphedModel(fused(model))
    if model.dtype != torch.bfloat16:
        raise ValueError(
            f"engine 'float8' rounds a bfloat16 model but this one is {model.dtype}; say .to(torch.bfloat16) first"
        )
    from recap.engine.float8 import Float8Ops

    return GraphedModel(fused(model, Float8Ops()))


def default_engine(device: torch.device | str) -> str:
    """The quickest engine that needs no decision: packed weights on a CPU that has the products, else plain torch."""
    return "onednn" if torch.device(device).type == "cpu" and available() else "eager"


def noise_with(engine: str) -> Callable[[Sequence[torch.Generator | int], torch.device], Noise]:
    """How `engine` makes the noise of a run; the numbers are always the same."""
    if engine not in ("graphs", "float8"):
        return Noise
    from recap.engine.graphs import NoiseGraphs

    return NoiseGraphs()


def check_engine(engine: str, device: torch.device) -> None:
    """Refuse an engine that is not known or cannot run on a device."""
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    if engine == "eager":
        return
    if engine == "onednn":
        if default_engine(device) == engine:
            return
        raise ValueError(f"engine 'onednn' needs a CPU with AVX2, and a torch with oneDNN; use 'eager' on {device}")
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            f"engine {engine!r} needs Triton, which is not installed; use 'eager', or pip install triton"
        )
    from recap.engine import kernels

    if not kernels.available(device) or (engine != "fused" and device.type != "cuda"):
        raise ValueError(f"engine {engine!r} needs a CUDA device but the model is on {device}; use 'eager' there")
    if engine == "float8" and torch.cuda.get_device_capability(device) < (8, 9):
        raise ValueError(
            f"engine 'float8' needs a card with matrix products of eight bits (compute capability 8.9), but "
            f"{torch.cuda.get_device_name(device)} has none; use 'graphs' there"
        )


__all__ = ["ENGINES", "WARM_RUNS", "check_engine", "default_engine", "noise_with", "with_engine"]
