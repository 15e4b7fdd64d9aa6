"""Ways to run the same model: as torch does it, with fused kernels, or with these replayed from CUDA graphs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import torch

from recap.core.noise import Noise
from recap.models.adapter import Adapter

ENGINES = ("eager", "fused", "graphs")
WARM_RUNS = {"eager": 1, "fused": 1, "graphs": 2}  # of one shape until nothing is set up any more


def with_engine(model: Adapter, engine: str) -> Adapter:
    """The model as `engine` runs it, over the same network; the one that is given stays as it is."""
    check_engine(engine, model.device)
    if engine == "eager":
        return model
    from recap.engine.fused import fused  # needs Triton, which comes with torch where there is a GPU

    quick = fused(model)
    if engine == "fused":
        return quick
    from recap.engine.graphs import graphed

    return graphed(quick)


def noise_with(engine: str) -> Callable[[Sequence[torch.Generator], torch.device], Noise]:
    """How `engine` makes the noise of a run; the numbers are always the same."""
    if engine != "graphs":
        return Noise
    from recap.engine.graphs import NoiseGraphs

    return NoiseGraphs()


def check_engine(engine: str, device: torch.device) -> None:
    """Refuse an engine that is not known or cannot run on a device."""
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    if engine == "eager":
        return
    if importlib.util.find_spec("triton") is None:
        raise ValueError(
            f"engine {engine!r} needs Triton, which is not installed; use 'eager', or pip install triton"
        )
    from recap.engine import kernels

    if not kernels.available(device) or (engine == "graphs" and device.type != "cuda"):
        raise ValueError(f"engine {engine!r} needs a CUDA device but the model is on {device}; use 'eager' there")


__all__ = ["ENGINES", "WARM_RUNS", "check_engine", "noise_with", "with_engine"]
