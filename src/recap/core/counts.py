"""Rules for the numbers of a schedule: tokens in each sub-step, sub-steps in each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MAX_STEPS = 1 << 20  # sub-steps of a schedule; each commits a token, and no image has so many


def cosine_counts(tokens: int, steps: int) -> list[int]:
    """Tokens of each sub-step; `floor(N cos(pi/2 (s+1)/K))` stay masked after sub-step s."""
    return counts_from(tokens, [math.floor(tokens * math.cos(math.pi / 2 * s / steps)) for s in range(1, steps)])


def linear_counts(tokens: int, steps: int) -> list[int]:
    """Tokens of each sub-step; `floor(N (1 - (s+1)/K))` stay masked after sub-step s."""
    return counts_from(tokens, [tokens * (steps - s) // steps for s in range(1, steps)])


def power_counts(tokens: int, steps: int, exponent: float = 2.5) -> list[int]:
    """Tokens of each sub-step; the last one pays for the ones that the formula leaves empty."""
    masked = [math.floor(tokens * (1 - (s / steps) ** exponent)) for s in range(steps)]
    counts = [max(1, before - after) for before, after in pairwise(masked)]
    counts.append(tokens - sum(counts))
    if counts[-1] < 1:
        raise ValueError(f"{steps} sub-steps leave none of {tokens} tokens for the last; use fewer sub-steps")
    return counts


def counts_from(tokens: int, masked_after: Sequence[int]) -> list[int]:
    """Counts from targets of the mask length, at least one token for this sub-step and each that follows."""
    counts, masked = [], tokens
    for index, target in enumerate(masked_after):
        kept = max(len(masked_after) - index, min(masked - 1, target))
        counts.append(masked - kept)
        masked = kept
    return [*counts, masked]


def group_lengths(full: int, local: int = 0, warmup: int | None = None, chain: int = 1) -> tuple[int, ...]:
    """Sub-steps in each group: `warmup` groups of a full evaluation alone, then those that reuse, then the rest.

    By default half of all sub-steps pass before the first local evaluation. A warm-up that leaves too few groups for
    the local evaluations is shortened.
    """
    if max(full, local) > MAX_STEPS:
        raise ValueError(
            f"a schedule of {max(full, local)} evaluations was asked for; expected {MAX_STEPS:,} at most"
        )
    if chain < 1:
        raise ValueError(f"chain is {chain}; a group with reuse has at least 1 local evaluation")
    if full < 1 or local < 0:
        raise ValueError(f"full={full}, local={local}: at least one full evaluation, no negative counts")
    if local > full * chain:
        raise ValueError(
            f"{local} local evaluations have no room in {full} groups with at most {chain} each; "
            f"use local <= {full * chain} or chain >= {-(-local // full)}"
        )
    if warmup is not None and not 0 <= warmup <= full:
        raise ValueError(f"warmup is {warmup}; of {full} groups, 0 to {full} can go without local evaluations")
    reusing = -(-local // chain)
    warmup = min((full + local) // 2 if warmup is None else warmup, full - reusing)
    lengths = [1] * full
    for index in range(reusing):
        lengths[warmup + index] += min(chain, local - index * chain)
    return tuple(lengths)
