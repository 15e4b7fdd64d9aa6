"""Memory: what a run will take, how many images fit, and what to do when they do not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from recap.core.costs import RERANKING, CostModel, candidates, ranks
from recap.core.schedule import Schedule
from recap.tokenizers import KLVAEConfig, VQGANConfig

if TYPE_CHECKING:
    from recap.pipelines import Pipeline, TextPipeline

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("kmgt", start=1)
}
SHARE = 0.9  # of the free memory that is used: allocators and libraries want some
MAX_BATCH = 4096  # images at a time that are ever chosen without being asked for


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a run takes at its peak, beside Python and its libraries.

    `activations` are those of the largest evaluation and of the head, `tokenizer` what decoding the images takes once
    the cache has gone.
    """

    batch: int
    weights: int
    cache: int
    activations: int
    tokenizer: int

    @property
    def total(self) -> int:
        return self.weights + max(self.cache + self.activations, self.tokenizer)

    def as_dict(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}


def predict(
    config: CostModel,
    schedule: Schedule,
    batch: int,
    *,
    weights: int,
    dtype: torch.dtype = torch.float32,
    tokenizer: KLVAEConfig | VQGANConfig | None = None,
    cuda: bool = False,
    order: str | None = None,
) -> Memory:
    """The peak of drawing `batch` images; without a `tokenizer` they stay tokens.

    `order` says how many rows a step draws, to choose from; without one it is that of the model.
    """
    branches = 2 if schedule.guided else 1
    rows, size = (batch, batch * branches), dtype.itemsize
    cache = config.cache_layout(schedule).nbytes(batch, branches, dtype) if schedule.local else 0
    head = 0
    for context, group in schedule.contexts():
        done = 0  # of the group
        for step in group.steps:
            if done:
                drawn = group.local_draws(step, done, order == RERANKING)
            else:
                drawn = candidates(schedule, context, step) if ranks(config, order) else step.tokens
            done += step.tokens
            head = max(head, config.draw_bytes(step, drawn, rows, size, cuda))
    evaluation = batch * branches * config.full_values * size
    # graphs keep the head's memory during evaluations; without them, what it computes ahead may be there twice
    activations = head + max(evaluation, head)
    together = batch if cuda else 1  # on the CPU images are decoded one by one
    decoding = 0
    if tokenizer is not None:  # in float32, its last level, five times
        pixels = together * (schedule.known + schedule.tokens) * tokenizer.stride**2
        decoding = 4 * pixels * 5 * max(tokenizer.widths[:2])
    return Memory(batch, weights, cache, activations, decoding)


def free_bytes(device: torch.device | str) -> int:
    """Memory that is there for the taking."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_available(), _left_in_group())


def _available(path: Path = Path("/proc/meminfo")) -> int:
    if path.is_file():
        found = re.search(r"^MemAvailable:\s+(\d+) kB", path.read_text(), re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    names = ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES")  # the second is all that some systems know
    pages = next((os.sysconf(name) for name in names if name in os.sysconf_names), 0)
    return pages * os.sysconf("SC_PAGE_SIZE") if pages > 0 else 4 * 10**9


def _left_in_group(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container may still take; without a limit, more than there is."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        return int(limit) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):  # no such limits here, or the word "max"
        return 2**63


def largest_batch(predicted: Callable[[int], Memory], limit: int, *, cache_limit: int | None = None) -> int:
    """The largest batch whose predicted peak, and cache, stay within limits; 0 if not even one image does."""

    def fits(batch: int) -> bool:
        memory = predicted(batch)
        return memory.total <= limit and (cache_limit is None or memory.cache <= cache_limit)

    low, high = 0, 1
    while high <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    high = min(high, MAX_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def choose_batch(
    pipe: Pipeline | TextPipeline,
    schedule: Schedule,
    asked: int | str,
    num: int,
    *,
    cache_limit: int | None = None,
    decoded: bool = True,
) -> int:
    """How many images to draw at a time: as many as `asked`, or for "auto" as fit into free memory, at most `num`.

    Either way the predicted cache stays below `cache_limit`. `decoded`: whether the tokenizer runs too.
    """
    if asked != "auto" and cache_limit is None:
        return int(asked)
    tokenizer = pipe.decoder.config if decoded and pipe.decoder is not None else None
    predicted = partial(  # the weights are there already
        predict,
        pipe.sized(schedule.known + schedule.tokens),
        schedule,
        weights=0,
        dtype=pipe.model.dtype,
        tokenizer=tokenizer,
        cuda=pipe.device.type == "cuda",
    )
    if cache_limit is not None and predicted(1).cache > cache_limit:
        raise ValueError(
            f"--cache-limit is {shown(cache_limit)} but the cache of one image takes {shown(predicted(1).cache)}; "
            f"raise it, use --dtype bfloat16, or no local evaluations (--local 0), which need no cache"
        )
    free = int(SHARE * free_bytes(pipe.device)) if asked == "auto" else 2**63
    fitting = largest_batch(predicted, free, cache_limit=cache_limit)
    if asked != "auto":
        return min(int(asked), fitting)
    return max(1, min(num, fitting))  # one image is tried whatever is predicted


def size_of(text: str) -> int:
    """Bytes that a text such as 80GB, 1.5GiB or 512M means."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0 or float(match[1]) > 1e15:
        raise ValueError(f"{text!r} is no size; give one such as 80GB, 1.5GiB or 512M")
    return int(float(match[1]) * UNITS[(match[2] or "").lower()])


def shown(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
