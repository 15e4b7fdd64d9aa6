"""What a run will cost, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from recap.core.costs import Cost, plain_cost, run_cost
from recap.core.presets import PAPER_ROWS
from recap.core.schedule import Schedule
from recap.models.registry import SIZES, Config, TokenizerConfig, count_parameters, family_of
from recap.planning.memory import Memory, largest_batch, predict


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule on a model: its cost for one image against plain decoding with as many sub-steps."""

    model: str
    schedule: Schedule
    cost: Cost
    plain_cost: Cost
    cache_bytes: int  # for one image
    preset: str
    memory: Memory | None = None  # for a batch
    largest_batch: int | None = None  # within a limit

    @property
    def speedup(self) -> float:
        """Predicted gain over the plain run with as many steps, by operations alone."""
        return self.plain_cost.total / self.cost.total

    @property
    def local_share(self) -> float:
        """The mean local evaluation over the mean full one."""
        if not self.schedule.local:
            return 0.0
        return (self.cost.local / self.schedule.local) / (self.cost.full / self.schedule.full)

    def as_dict(self) -> dict[str, Any]:
        schedule = self.schedule
        return {
            "model": self.model,
            "preset": self.preset,
            "full": schedule.full,
            "local": schedule.local,
            "warmup": schedule.warmup,
            "guided": schedule.guided,
            "tokens": list(schedule.sizes),
            "groups": [list(group.sizes) for group in schedule],
            "flops": self.cost.total,
            "flops_full": self.cost.full,
            "flops_local": self.cost.local,
            "flops_head": self.cost.head,
            "flops_plain": self.plain_cost.total,
            "flops_plain_head": self.plain_cost.head,
            "local_over_full": self.local_share,
            "cache_bytes": self.cache_bytes,
            "speedup": self.speedup,
            **({} if self.memory is None else {"memory": self.memory.as_dict()}),
            **({} if self.largest_batch is None else {"largest_batch": self.largest_batch}),
        }


def plan(
    model: str, config: Config, schedule: Schedule, *, preset: str = "", dtype: torch.dtype = torch.float32
) -> Plan:
    """Count operations and cache bytes of `schedule` on a model of this size."""
    if schedule.tokens != config.num_tokens:
        raise ValueError(f"the schedule decodes {schedule.tokens} tokens but {model} has {config.num_tokens}")
    layout = config.cache_layout(schedule)
    cache = layout.nbytes(1, 2 if schedule.guided else 1, dtype) if schedule.local else 0
    return Plan(model, schedule, run_cost(config, schedule), plain_cost(config, schedule), cache, preset)


def with_memory(
    plan: Plan,
    config: Config,
    tokenizer: TokenizerConfig | None,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    cuda: bool = False,
    limit: int | None = None,
) -> Plan:
    """The plan with the predicted peak of a batch, and with a `limit` in bytes the largest batch that stays below.

    The tokenizer runs in float32 whatever the model does; inside MAGE there is one already.
    """
    decoder = 0 if tokenizer is None else count_parameters(tokenizer)
    inside, beside = (decoder, 0) if family_of(config).tokenizer_inside else (0, decoder)
    weights = (count_parameters(config) - inside) * dtype.itemsize + 4 * (inside + beside)

    def predicted(images: int) -> Memory:
        return predict(config, plan.schedule, images, weights=weights, dtype=dtype, tokenizer=tokenizer, cuda=cuda)

    most = None if limit is None else largest_batch(predicted, limit)
    return replace(plan, memory=predicted(batch), largest_batch=most)


def paper_plans(dtype: torch.dtype = torch.float32) -> list[Plan]:
    """Every ReCAP row of the paper's tables."""
    return [plan(r.model, SIZES[r.model], r.schedule(), preset=r.preset, dtype=dtype) for r in PAPER_ROWS]


def table(plans: Iterable[Plan]) -> str:
    """The plans as lines for people."""
    head = (
        f"{'model':<14} {'full+local':>10} {'warmup':>6} {'tokens in a group':>18} {'full':>9} {'local':>9} "
        f"{'head':>9} {'total':>9} {'plain':>9} {'cache/image':>11} {'speed-up':>8}"
    )
    unit = f"{'':<14} {'':>10} {'':>6} {'first .. last':>18} {'GFLOP ea.':>9} {'GFLOP ea.':>9} " + " ".join(
        [f"{'TFLOP':>9}"] * 3
    )
    lines = [head, unit, "-" * len(head)]
    for p in plans:
        s, groups = p.schedule, [group.tokens for group in p.schedule]
        branches = 2 if s.guided else 1
        local = p.cost.local / s.local / branches / 1e9 if s.local else 0.0
        lines.append(
            f"{p.model:<14} {s!s:>10} {s.warmup:>6} {f'{groups[0]} .. {groups[-1]}':>18} "
            f"{p.cost.full / s.full / branches / 1e9:>9.1f} {local:>9.2f} {p.cost.head / 1e12:>9.3f} "
            f"{p.cost.total / 1e12:>9.3f} {p.plain_cost.total / 1e12:>9.3f} {p.cache_bytes / 1e6:>8.1f} MB "
            f"{p.speedup:>7.3f}x"
        )
    return "\n".join(lines)


def memory_table(plans: Iterable[Plan], limit: int | None = None) -> str:
    """The memory of the plans as lines for people."""
    names = ("weights", "cache", "activations", "tokenizer", "total")
    head = f"{'model':<14} {'full+local':>10} {'batch':>5} " + " ".join(f"{name:>11}" for name in names)
    most = "" if limit is None else f" {f'images in {limit / 1e9:g} GB':>18}"
    lines = [head + most, "-" * len(head + most)]
    for p in plans:
        if p.memory is not None:
            parts = p.memory.as_dict()
            cells = " ".join(f"{parts[name] / 1e6:>8.1f} MB" for name in names)
            last = "" if limit is None else f" {p.largest_batch:>18}"
            lines.append(f"{p.model:<14} {p.schedule!s:>10} {p.memory.batch:>5} {cells}{last}")
    return "\n".join(lines)
