"""The published settings by name, and the rows of the paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Any, Unpack

from recap.core.blocks import dream_counts, led_counts, text
from recap.core.schedule import Draws, Ramp, Schedule, cosine, power

USUAL = (48, 16)  # full and local evaluations of models of images that say nothing of their own

# tau_low of MaskGIT-r by total steps (appendix A), and MAGE's first choice temperature (appendix E.3)
MASKGIT_R_TAU_LOW = {16: 0.65, 20: 0.68, 24: 0.72, 32: 0.75}
MAGE_CHOICE = {20: 6.0, 30: 6.5, 40: 7.0, 50: 8.0, 60: 8.5, 70: 9.0, 80: 9.5, 100: 12.0, 128: 13.0}
MAR_GUIDANCE = {"mar-base": 2.9, "mar-large": 3.0, "mar-huge": 3.2}


def maskgit(tokens: int = 256, **given: Unpack[Draws]) -> Schedule:
    """MaskGIT as published: cosine counts, token temperature 1, choice temperature 4.5 decaying to 0."""
    draws: Draws = {"choice_temperature": 4.5, **given}
    return cosine(tokens, **draws)


def maskgit_r(tokens: int = 256, **given: Unpack[Draws]) -> Schedule:
    """MaskGIT-r: polynomial counts, cooling token temperature, choice temperature 5.5 decaying to 0.

    The paper gives the final temperature for 16, 20, 24 and 32 steps; other step counts interpolate.
    Positions are ranked by a draw at temperature 1, and the committed values are drawn again at tau_1.
    A `temperature` takes the place of the cooling one in every sub-step.
    """
    steps = given["full"] + given.get("local", 0)
    low = interpolated(MASKGIT_R_TAU_LOW, steps)
    cooling = [low + (1 - (s / max(1, steps - 1)) ** 0.5) * (1 - low) for s in range(steps)]
    draws: Draws = {"temperature": cooling, "rank_temperature": 1.0, "choice_temperature": 5.5, **given}
    return power(tokens, **draws)


def mage(tokens: int = 256, **given: Unpack[Draws]) -> Schedule:
    """MAGE: cosine counts, token temperature 1, a choice temperature that grows with the number of steps.

    Local evaluations start in the first group (u = 0) unless `warmup` says otherwise.
    """
    choice = interpolated(MAGE_CHOICE, given["full"] + given.get("local", 0))
    draws: Draws = {"choice_temperature": choice, **given}
    if draws.get("warmup") is None:
        draws["warmup"] = 0
    return cosine(tokens, **draws)


def mar(tokens: int = 256, **given: Unpack[Draws]) -> Schedule:
    """MAR: cosine counts in random order, guidance that grows with the decoded share from 1 to 3.

    The diffusion head takes 100 steps after full evaluations and 50 after local ones.
    """
    draws: Draws = {"guidance": Ramp(1.0, 3.0), **given}
    return cosine(tokens, **draws)


def written(tokens: int = 256, **given: Any) -> Schedule:
    """Text as the paper decodes images in random order: as many tokens in every step, drawn at temperature 1."""
    return text(tokens, **given)


def llada(tokens: int = 256, **given: Any) -> Schedule:
    """LLaDA: greedy, the surest tokens of a block first."""
    return text(tokens, **{"temperature": 0.0, **given})


def dream(tokens: int = 256, **given: Any) -> Schedule:
    """Dream: greedy, tokens of the least entropy first, in its own counts without the steps that commit nothing."""
    return text(tokens, **{"temperature": 0.0, "confidence": "entropy", "counts": dream_counts, **given})


def fast_dllm(tokens: int = 256, rows: str = "target", **given: Any) -> Schedule:
    """Fast-dLLM: a full evaluation opens a block, and local ones of the block, or of all behind too, choose anew."""
    if tokens % given["full"]:
        raise ValueError(
            f"{given['full']} full evaluations open as many blocks, but {tokens} tokens do not divide into so many; "
            f"use a divisor of {tokens}"
        )
    return text(tokens, **{"temperature": 0.0, "rows": rows, "block": tokens // given["full"], **given})


def fast_dream(tokens: int = 256, **given: Any) -> Schedule:
    """Fast-dLLM on Dream: the full evaluation takes the first token of its block, whatever the others are."""
    rule = {"confidence": "entropy", "counts": led_counts} if given.get("threshold") is None else {}
    return fast_dllm(tokens, **{**rule, "lead": True, **given})


def informed(tokens: int = 256, **given: Any) -> Schedule:
    """Text whose local evaluations choose anew, in target sets of twice the size, with coupled draws."""
    return text(tokens, **({"target": 2.0, "coupled": True} if given.get("local") else {}) | given)


def interpolated(table: Mapping[int, float], steps: int) -> float:
    """The published value for a step count; between two of them linear, outside them the nearest."""
    known = sorted(table)
    for low, high in pairwise(known):
        if low <= steps <= high:
            share = (steps - low) / (high - low)
            return table[low] + share * (table[high] - table[low])
    return table[known[0] if steps < known[0] else known[-1]]


TEXT: dict[str, Callable[..., Schedule]] = {
    "text": written,
    "llada": llada,
    "dream": dream,
    "fast-dllm-prefix": partial(fast_dllm, rows="rest"),
    "fast-dllm-dual": fast_dllm,
    "fast-dream-prefix": partial(fast_dream, rows="rest"),
    "fast-dream-dual": fast_dream,
    "informed": informed,
}
ORDER_OF = {"text": "random", "llada": "confidence", "dream": "confidence"}  # of other presets of text: informed
BLOCKWISE = tuple(name for name in TEXT if name.startswith("fast-"))  # whose groups are whole blocks
FAST_BLOCK = 32  # tokens of a block, where nothing else is said

DIFFUSION = ("mar", *MAR_GUIDANCE)  # presets of families that draw latents, in random order
PRESETS: dict[str, Callable[..., Schedule]] = {
    "maskgit": maskgit,
    "maskgit-r": maskgit_r,
    "mage": mage,
    "mar": mar,
    **{name: partial(mar, guidance=Ramp(1.0, scale)) for name, scale in MAR_GUIDANCE.items()},
    **TEXT,
}
FOR_TEXT = ("block", "rows", "threshold", "top_k", "top_p", "confidence")  # options that images have no use for


def usual_evaluations(preset: str | None, tokens: int, block: int | None) -> tuple[int, int]:
    """Full and local evaluations where nothing is said: of text, a step for each token."""
    if preset not in TEXT:
        return USUAL
    if preset in ("llada", "dream"):
        return tokens, 0
    if preset in BLOCKWISE:
        full = max(1, tokens // (block or FAST_BLOCK))
        return full, tokens - full
    full = -(-tokens // 4)
    return full, tokens - full


def usual_order(preset: str | None) -> str | None:
    """Where a preset of text decodes first; models of images have orders of their own."""
    return ORDER_OF.get(preset, "informed") if preset in TEXT else None


def preset(name: str, tokens: int = 256, **given: Any) -> Schedule:
    """A published setting by name, for example `preset("mar-large", full=72, local=24)`."""
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no preset is called {name!r}; did you mean {near!r}? Known: {', '.join(PRESETS)}")
    check_family(name, given)
    return PRESETS[name](tokens, **given)


def check_family(preset: str, given: Collection[str]) -> None:
    """Refuse options that mean nothing to the family of a preset."""
    if preset in DIFFUSION and "choice_temperature" in given:
        raise ValueError(f"preset {preset!r} decodes in random order; leave choice_temperature out")
    if preset not in TEXT and (said := [name for name in FOR_TEXT if name in given]):
        raise ValueError(f"preset {preset!r} is for images, and {said[0]} for text; leave it out")
    if preset not in DIFFUSION and ("head_steps" in given or "solver" in given):
        raise ValueError(f"preset {preset!r} has no diffusion head; leave head_steps and solver out")


def usual_guidance(preset: str, guidance: float | Ramp) -> float | Ramp:
    """What one number means: a ramp from 1 for MAR, constant otherwise; a `Ramp` stays as it is."""
    if preset in DIFFUSION and not isinstance(guidance, Ramp):
        return Ramp(1.0, float(guidance))
    return guidance


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A ReCAP row of the paper's tables: model, preset, full + local evaluations, and u as printed."""

    model: str
    preset: str
    full: int
    local: int
    warmup: int

    def schedule(self) -> Schedule:
        return preset(self.preset, full=self.full, local=self.local, warmup=self.warmup)


PAPER_ROWS: tuple[PaperRow, ...] = (
    *(
        PaperRow("maskgit-large", "maskgit-r", *row)
        for row in ((8, 8, 0), (12, 4, 8), (15, 5, 10), (16, 8, 10), (22, 10, 12))
    ),
    *(PaperRow("mar-large", "mar-large", *row) for row in ((72, 24, 48), (64, 20, 42), (20, 8, 14))),
    *(PaperRow("mar-huge", "mar-huge", *row) for row in ((96, 32, 64), (36, 12, 24))),
    *(PaperRow("mage-large", "mage", full, full, 0) for full in (20, 25, 30, 35, 40, 50)),
    PaperRow("mage-large", "mage", 80, 48, 0),
)

# sub-steps of plain decoding in the paper's tables, by the first word of a model's name
PAPER_PLAIN = {
    "maskgit": (12, 16, 20, 24, 32),
    "mage": (20, 30, 40, 50, 60, 70, 80, 100, 128),
    "mar": (20, 48, 64, 128, 256),
}
