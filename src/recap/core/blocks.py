"""How many: schedules of text, which is decoded in blocks from left to right."""

from __future__ import annotations

from recap.core.schedule import Schedule
from recap.core.steps import Group, Step, check_value, one_of, whole

CACHES = ("prefix", "dual")  # Fast-dLLM's names


def blocks(
    tokens: int,
    length: int,
    *,
    steps: int | None = None,
    cache: str | None = None,
    threshold: float | None = None,
    temperature: float = 0.0,
    guidance: float = 1.0,
    known: int = 0,
) -> Schedule:
    """Block after block of `length` tokens, for `BlockOrder(length)`; greedy, unless a temperature is given.

    Every block has its share of the `steps`, and shares its tokens among them, one more in the first ones if they do
    not divide; by default each step has one token. Without a `cache` all evaluations are full. With one, the first of
    a block is, and the others recompute the block alone ("dual") or with everything behind it ("prefix"). With a
    `threshold`, all tokens of the block of at least this probability are committed at once, and counts are the least.
    """
    for name, value in (("tokens", tokens), ("length", length), ("steps", tokens if steps is None else steps)):
        check_value(name, value, whole(1))
    if cache is not None:
        check_value("cache", cache, one_of(CACHES))
    number = -(-tokens // length)
    share, rest = (length, 0) if steps is None else divmod(steps, number)
    if rest or not share:
        raise ValueError(f"{steps} steps are not shared equally by {number} blocks; use a multiple of {number}")
    groups: list[Group] = []
    for first in range(0, tokens, length):
        size = min(length, tokens - first)
        made = tuple(
            Step(count, temperature, guidance=guidance, threshold=threshold)
            for count in even_counts(size, min(share, size))
        )
        if cache is None:
            groups += (Group((step,)) for step in made)
        else:
            groups.append(Group(made, after=tokens - first - size if cache == "prefix" else 0))
    return Schedule(tuple(groups), known)


def even_counts(tokens: int, steps: int) -> list[int]:
    """Tokens of each step, where the first ones have what does not divide (LLaDA)."""
    return [tokens // steps + (step < tokens % steps) for step in range(steps)]
