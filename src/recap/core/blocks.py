"""How many: schedules of text, which may be decoded in blocks from left to right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from recap.core.counts import group_lengths
from recap.core.schedule import Schedule
from recap.core.steps import Group, Step, check_value, one_of, whole

ROWS = ("target", "block", "rest")  # what local evaluations recompute: of Fast-dLLM, "rest" is the prefix cache

Counts = Callable[[int, int], list[int]]  # of tokens and steps


def text(
    tokens: int,
    *,
    full: int,
    local: int = 0,
    warmup: int | None = None,
    chain: int | None = None,
    block: int | None = None,
    rows: str = "target",
    counts: Counts | None = None,
    lead: bool = False,
    target: float = 1.0,
    coupled: bool = False,
    known: int = 0,
    ahead: int = 0,
    **step: Any,
) -> Schedule:
    """`full` and `local` evaluations, shared equally by blocks of `block` tokens (one of all by default).

    Every block shares its tokens among its steps, one more in the first ones if they do not divide (LLaDA); `counts`
    is another rule. A group has as many local evaluations as fit evenly, `chain` at most, and `warmup` groups of a
    block have none. Local evaluations recompute the target set, the block, or everything from the target set on
    (`rows`). With `lead`, the first step of a block takes its first position, whatever the others are (Fast-dLLM on
    Dream). `ahead` masked positions stand before the first block, and may be taken at any time. `step` says how
    tokens are drawn, the same way in every step.
    """
    for name, value in (("tokens", tokens), ("block", block or tokens), ("full", full)):
        check_value(name, value, whole(1))
    check_value("rows", rows, one_of(ROWS))
    size = block or tokens
    if tokens % size:
        raise ValueError(f"{tokens} tokens do not divide into blocks of {size}; ask for a multiple of {size} tokens")
    shares = {"full": full, "local": local}
    for name, number in shares.items():
        if number % (tokens // size):
            raise ValueError(
                f"{number} {name} evaluations are not shared equally by {tokens // size} blocks of {size} tokens; "
                f"use a multiple of {tokens // size}, or blocks of another length"
            )
        shares[name] = number * size // tokens
    if sum(shares.values()) > size:
        raise ValueError(
            f"{full + local} steps have no room in {tokens} tokens; every one of them commits at least one"
        )
    sizes = (counts or even_counts)(size, sum(shares.values()))
    reused = min(shares["local"], len(sizes) - 1)  # a rule may leave steps out
    opened = min(shares["full"], len(sizes) - reused)
    reused = len(sizes) - opened if reused else 0
    lengths = group_lengths(len(sizes) - reused, reused, warmup or 0, chain or max(1, -(-reused // opened)))
    groups: list[Group] = []
    for first in range(0, tokens, size):
        done, end = 0, first + size
        for length in lengths:
            part, sizes_left = sizes[:length], sizes[length:]
            made = [Step(count, until=ahead + end if block else 0, **step) for count in part]
            if lead and not done:
                made[0] = Step(part[0], until=ahead + first + part[0], **step)
            held = sum(part)
            picked = min(math.ceil(target * held), size - done)
            groups.append(
                Group(
                    tuple(made),
                    target=picked if length > 1 and picked > held else 0,
                    before=done if rows == "block" else 0,
                    after={"target": 0, "block": size - done - picked, "rest": tokens + ahead}[rows],
                    coupled=coupled,
                )
            )
            done, sizes = done + held, [*sizes_left, *part]  # round and round: every block has the same
    return Schedule(tuple(groups), known)


def even_counts(tokens: int, steps: int) -> list[int]:
    """Tokens of each step, where the first ones have what does not divide (LLaDA)."""
    return [tokens // steps + (step < tokens % steps) for step in range(steps)]


def dream_counts(tokens: int, steps: int, eps: float = 1e-3, first: int = 0) -> list[int]:
    """Dream's tokens of each step; steps that commit nothing are left out, since nothing changes by them.

    Times go from 1 down to `eps`, and a step takes the share of what is masked by which the time shrinks, in float32.
    Steps before `first` have passed.
    """
    times = torch.linspace(1, eps, steps + 1)
    counts, masked = [], tokens
    for step in range(first, steps):
        share = float(torch.tensor(float(masked)) * (1 - times[step + 1] / times[step]))
        counts.append(masked if step == steps - 1 else int(share))
        masked -= counts[-1]
    return [count for count in counts if count]


def led_counts(tokens: int, steps: int) -> list[int]:
    """Those of Fast-dLLM on Dream: one token in the first step, and then what Dream's other steps have."""
    if steps == 1 < tokens:
        raise ValueError(
            f"one step takes one token here, and {tokens - 1} of a block would stay; use 2 steps or more"
        )
    return [1, *dream_counts(tokens - 1, steps, first=1)]
