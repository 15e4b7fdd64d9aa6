"""What a run will cost, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from recap.core.costs import Cost, run_cost
from recap.core.presets import PAPER_ROWS
from recap.core.schedule import Schedule
from recap.models.registry import SIZES, Config, TokenizerConfig, count_parameters, family_of
from recap.planning.memory import Memory, largest_batch, predict
from recap.view.table import aligned


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule on a model: its cost for one image against plain decoding with as many sub-steps, and its memory."""

    model: str
    preset: str
    schedule: Schedule
    cost: Cost
    plain_cost: Cost
    memory: Memory  # of a batch, at its peak
    largest_batch: int | None = None  # within a limit
    noun: str = "image"  # what a run draws

    @property
    def cache_bytes(self) -> int:
        """For one image."""
        return self.memory.cache // self.memory.batch

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
            "memory": self.memory.as_dict(),
            **({} if self.largest_batch is None else {"largest_batch": self.largest_batch}),
        }


def plan(
    model: str,
    config: Config,
    schedule: Schedule,
    tokenizer: TokenizerConfig | None = None,
    *,
    preset: str = "",
    dtype: torch.dtype = torch.float32,
    batch: int = 1,
    cuda: bool = False,
    limit: int | None = None,
    order: str | None = None,
) -> Plan:
    """Operations and memory of `schedule` on a model of this size; with a `limit` in bytes also the largest batch.

    The tokenizer runs in float32 whatever the model does; inside MAGE there is one already. `order` is as for
    `predict`.
    """
    if schedule.known + schedule.tokens != config.num_tokens:
        raise ValueError(f"the schedule decodes {schedule.tokens} tokens but {model} has {config.num_tokens}")
    decoder = 0 if tokenizer is None else count_parameters(tokenizer)
    rounded = count_parameters(config) - (decoder if family_of(config).tokenizer_inside else 0)
    weights = rounded * dtype.itemsize + 4 * decoder
    how: dict[str, Any] = {"dtype": dtype, "tokenizer": tokenizer, "cuda": cuda, "order": order}
    predicted: Callable[[int], Memory] = partial(predict, config, schedule, weights=weights, **how)
    most = None if limit is None else largest_batch(predicted, limit)
    costs = run_cost(config, schedule, order), run_cost(config, schedule.plain(), order)
    noun = "text" if family_of(config).modality == "text" else "image"
    return Plan(model, preset, schedule, *costs, predicted(batch), most, noun)


def paper_plans(**options: Any) -> list[Plan]:
    """Every ReCAP row of the paper's tables, with the `options` of `plan`."""
    plans = []
    for row in PAPER_ROWS:
        config = SIZES[row.model]
        tokenizer = family_of(config).tokenizer_config(config)
        plans.append(plan(row.model, config, row.schedule(), tokenizer, preset=row.preset, **options))
    return plans


def table(plans: Iterable[Plan]) -> str:
    rows = []
    for p in plans:
        s, groups, cost = p.schedule, [group.tokens for group in p.schedule], p.cost
        branches = 2 if s.guided else 1
        row = {
            "model": p.model,
            "full+local": str(s),
            "warmup": str(s.warmup),
            "tokens in a group": f"{groups[0]} .. {groups[-1]}",
            "full GFLOP": f"{cost.full / s.full / branches / 1e9:.1f}",
            "local GFLOP": f"{cost.local / max(1, s.local) / branches / 1e9:.2f}",
            "head TFLOP": f"{cost.head / 1e12:.3f}",
            "total TFLOP": f"{cost.total / 1e12:.3f}",
            "plain TFLOP": f"{p.plain_cost.total / 1e12:.3f}",
            f"cache/{p.noun}": f"{p.cache_bytes / 1e6:.1f} MB",
            "speed-up": f"{p.speedup:.3f}x",
        }
        rows.append(row)
    return aligned(rows)


def memory_table(plans: Iterable[Plan], limit: int | None = None) -> str:
    rows = []
    for p in plans:
        parts = {name: f"{size / 1e6:.1f} MB" for name, size in p.memory.as_dict().items()}
        row = {"model": p.model, "full+local": str(p.schedule), **parts, "batch": str(p.memory.batch)}
        rows.append(row if limit is None else row | {f"{p.noun}s in {limit / 1e9:g} GB": str(p.largest_batch)})
    return aligned(rows)
