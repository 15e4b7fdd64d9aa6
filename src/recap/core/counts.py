"""Rules for the numbers of a schedule: tokens in each sub-step, sub-steps in each group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


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


MOST_STEPS = 1 << 20  # sub-steps of a schedule; each commits a token, and no image has so many


def group_lengths(
    *,
    full: int | None = None,
    local: int = 0,
    plain: int | None = None,
    total: int | None = None,
    chain: int = 1,
    spread: bool = False,
) -> tuple[int, ...]:
    """Sub-steps in each group, in either way of speaking (see `Options`)."""
    if (full is None) == (total is None):
        raise ValueError(f"say either full= (with local=) or total=, not both or neither; got {full=}, {total=}")
    if max(full or 0, local, total or 0) > MOST_STEPS:
        most = max(full or 0, local, total or 0)
        raise ValueError(f"a schedule of {most} evaluations was asked for; expected {MOST_STEPS:,} at most")
    if chain < 1:
        raise ValueError(f"chain is {chain}; a group with reuse has at least 1 local evaluation")
    if plain is not None and plain < 0:
        raise ValueError(f"plain is {plain}; the number of groups without local evaluations cannot be negative")
    if total is not None:
        if local or spread:
            raise ValueError(f"{local=}, {spread=} goes with full=; total= cuts its groups by plain= and chain=")
        plain = total // 2 if plain is None else plain
        if total < 1 or plain > total:
            raise ValueError(f"{plain} plain groups do not fit into {total} sub-steps; lower plain or raise total")
        grouped, rest = divmod(total - plain, chain + 1)
        return (1,) * plain + (chain + 1,) * grouped + ((rest,) if rest else ())
    assert full is not None
    if full < 1 or local < 0:
        raise ValueError(f"full={full}, local={local}: at least one full evaluation, no negative counts")
    if local > full * chain:
        raise ValueError(
            f"{local} local evaluations have no room in {full} groups with at most {chain} each; "
            f"use local <= {full * chain} or chain >= {-(-local // full)}"
        )
    if plain is not None and plain > full:
        raise ValueError(f"{plain} plain groups are more than the {full} full evaluations; lower plain")
    reusing = -(-local // chain)
    plain = min((full + local) // 2 if plain is None else plain, full - reusing)
    lengths = [1] * full
    room = full - plain if spread else reusing
    for index in range(reusing):
        lengths[plain + index * room // reusing] += min(chain, local - index * chain)
    return tuple(lengths)
