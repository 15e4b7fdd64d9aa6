"""The published settings by name, and the rows of the paper's tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Self, TypedDict, Unpack

from recap.core.counts import group_lengths
from recap.core.schedule import Ramp, Schedule, cosine, from_ratios, power

# tau_low of MaskGIT-r by total steps (appendix A), and MAGE's first choice temperature (appendix E.3)
MASKGIT_R_TAU_LOW = {16: 0.65, 20: 0.68, 24: 0.72, 32: 0.75}
MAGE_CHOICE = {20: 6.0, 30: 6.5, 40: 7.0, 50: 8.0, 60: 8.5, 70: 9.0, 80: 9.5, 100: 12.0, 128: 13.0}
MAR_GUIDANCE = {"mar-base": 2.9, "mar-large": 3.0, "mar-huge": 3.2}


class Grouping(TypedDict, total=False):
    """The grouping part of `Options`: full, local, plain, spread, or total, plain; chain; renew; and known."""

    full: int | None
    local: int
    plain: int | None
    total: int | None
    chain: int
    spread: bool
    renew: str
    known: int


def sub_steps(grouping: Grouping) -> int:
    """How many sub-steps a grouping has."""
    lengths: dict[str, Any] = {name: value for name, value in grouping.items() if name not in ("renew", "known")}
    return sum(group_lengths(**lengths))


def maskgit(
    tokens: int = 256,
    guidance: float | Ramp = 1.0,
    temperature: float = 1.0,
    choice_temperature: float = 4.5,
    **grouping: Unpack[Grouping],
) -> Schedule:
    """MaskGIT as published: cosine counts, token temperature 1, choice temperature 4.5 decaying to 0."""
    return cosine(
        tokens,
        token_temperature=temperature,
        choice_temperature=choice_temperature,
        guidance=guidance,
        **grouping,
    )


def maskgit_r(
    tokens: int = 256,
    guidance: float | Ramp = 1.0,
    temperature: float | None = None,
    choice_temperature: float = 5.5,
    **grouping: Unpack[Grouping],
) -> Schedule:
    """MaskGIT-r: polynomial counts, cooling token temperature, choice temperature 5.5 decaying to 0.

    The paper gives the final temperature for 16, 20, 24 and 32 steps; other step counts interpolate.
    Positions are ranked by a draw at temperature 1, and the committed values are drawn again at tau_1.
    A `temperature` takes the place of the cooling one in every sub-step.
    """
    steps = sub_steps(grouping)
    low = interpolated(MASKGIT_R_TAU_LOW, steps)
    tau = [low + (1 - (s / max(1, steps - 1)) ** 0.5) * (1 - low) for s in range(steps)]
    return power(
        tokens,
        token_temperature=tau if temperature is None else temperature,
        rank_temperature=1.0,
        choice_temperature=choice_temperature,
        guidance=guidance,
        **grouping,
    )


def mage(
    tokens: int = 256,
    guidance: float | Ramp = 1.0,
    temperature: float = 1.0,
    choice_temperature: float | None = None,
    **grouping: Unpack[Grouping],
) -> Schedule:
    """MAGE: cosine counts, token temperature 1, a choice temperature that grows with the number of steps.

    Local evaluations start in the first group (u = 0) unless `plain` says otherwise.
    """
    if grouping.get("plain") is None:
        grouping["plain"] = 0
    if choice_temperature is None:
        choice_temperature = interpolated(MAGE_CHOICE, sub_steps(grouping))
    return cosine(
        tokens,
        token_temperature=temperature,
        choice_temperature=choice_temperature,
        guidance=guidance,
        **grouping,
    )


def mar(
    tokens: int = 256,
    guidance: float | Ramp = Ramp(1.0, 3.0),
    temperature: float = 1.0,
    head_steps: tuple[int, int] = (100, 50),
    **grouping: Unpack[Grouping],
) -> Schedule:
    """MAR: cosine counts in random order, guidance that grows with the decoded share.

    The diffusion head takes 100 steps after full evaluations and 50 after local ones.
    """
    return cosine(tokens, token_temperature=temperature, guidance=guidance, head_steps=head_steps, **grouping)


def autonat_t8(tokens: int = 256) -> Schedule:
    """The 8-step strategy that comes with AutoNAT-L, found by search."""
    scales = [1e-4, 1e-4, 1e-4, 0.91513, 1.61602, 1.19455, 1.38322, 1.22679]
    return from_ratios(
        tokens,
        [0.95316, 0.87954, 0.79402, 0.74600, 0.62498, 0.40732, 0.26066],
        choice_temperature=[2.40491, 2.47762, 1.19170, 0.76854, 1.06735, 0.93537, 0.78438, 0.0],
        token_temperature=[2.89990, 1.86726, 1.14437, 1.37963, 1.46999, 1.37607, 1.70822, 0.71331],
        guidance=[1.0 + s for s in scales],  # AutoNAT writes l_c + s (l_c - l_u): no guidance is s = 0
    )


def interpolated(table: Mapping[int, float], steps: int) -> float:
    """The published value for a step count; between two of them linear, outside them the nearest."""
    known = sorted(table)
    if steps <= known[0]:
        return table[known[0]]
    for low, high in pairwise(known):
        if steps <= high:
            share = (steps - low) / (high - low)
            return table[low] + share * (table[high] - table[low])
    return table[known[-1]]


Preset = Callable[..., Schedule]


def _mar_of(scale: float) -> Preset:
    def preset(
        tokens: int = 256,
        guidance: float | Ramp = Ramp(1.0, scale),
        temperature: float = 1.0,
        head_steps: tuple[int, int] = (100, 50),
        **grouping: Unpack[Grouping],
    ) -> Schedule:
        return mar(tokens, guidance, temperature, head_steps, **grouping)

    return preset


PUBLISHED: dict[str, Preset] = {
    "maskgit": maskgit,
    "maskgit-r": maskgit_r,
    "mage": mage,
    **{name: _mar_of(scale) for name, scale in MAR_GUIDANCE.items()},
}
PRESETS: dict[str, Preset] = {**PUBLISHED, "mar": mar}
USUAL = {"full": 48, "local": 16}  # for models that say nothing of their own


def published(name: str, tokens: int = 256, **grouping: Unpack[Grouping]) -> Schedule:
    """A published setting by name, for example `published("mar-large", full=72, local=24)`."""
    if name not in PUBLISHED:
        near = get_close_matches(name, PUBLISHED, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"no published setting is called {name!r}; did you mean {near!r}? Known: {', '.join(PUBLISHED)}"
        )
    return PUBLISHED[name](tokens, **grouping)


def usual_guidance(preset: str, guidance: float | Ramp) -> float | Ramp:
    """What one number means: a ramp from 1 for MAR, constant otherwise; a `Ramp` stays as it is."""
    if preset.startswith("mar") and not isinstance(guidance, Ramp):
        return Ramp(1.0, float(guidance))
    return guidance


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model is sampled unless one says otherwise: a preset, what to change in it, and T + T'.

    None leaves a value to the preset. One number of `guidance` means what it usually does in the family: a
    ramp from 1 for MAR, constant otherwise. `head_steps` goes with MAR and `choice_temperature` with the rest.
    """

    preset: str
    guidance: float | Ramp | None = None
    temperature: float | None = None
    choice_temperature: float | None = None
    full: int | None = None
    local: int = 0
    plain: int | None = None
    head_steps: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.preset, str) or self.preset not in PRESETS:
            raise ValueError(f"preset is {self.preset!r}; it must be one of {', '.join(PRESETS)}")
        self._check_numbers()
        mar_only, others_only = self.head_steps is not None, self.choice_temperature is not None
        if self.preset.startswith("mar") and others_only:
            raise ValueError(f"preset {self.preset!r} decodes in random order; leave choice_temperature out")
        if not self.preset.startswith("mar") and mar_only:
            raise ValueError(f"preset {self.preset!r} has no diffusion head; leave head_steps out")
        if self.full is not None:
            group_lengths(full=self.full, local=self.local, plain=self.plain)
        elif self.local or self.plain is not None:
            raise ValueError(
                f"local={self.local} and plain={self.plain} come without full; say how many of these too"
            )

    def _check_numbers(self) -> None:
        scales = self.guidance if isinstance(self.guidance, Ramp) else (self.guidance,)
        if self.guidance is not None and not all(map(_is_number, scales)):
            raise ValueError(f"guidance is {self.guidance!r}; it must be a finite number or a pair [start, end]")
        if self.temperature is not None and not (_is_number(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature is {self.temperature!r}; it must be a positive number")
        choice = self.choice_temperature
        if choice is not None and not (_is_number(choice) and choice >= 0):
            raise ValueError(f"choice_temperature is {choice!r}; it must be 0 (greedy) or more")
        for name in ("full", "local", "plain"):
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name != "local"):
                raise ValueError(f"{name} is {value!r}; it must be an integer")
        steps = self.head_steps
        if steps is not None and not (len(steps) == 2 and all(type(n) is int and n >= 2 for n in steps)):
            raise ValueError(f"head_steps is {steps!r}; it must be two integers of at least 2, for full and local")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The settings that a parsed JSON object describes."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown or "preset" not in data:
            raise ValueError(
                f"sampling has {', '.join(map(repr, data)) or 'no entries'}; "
                f"it must have 'preset' and may have {', '.join(map(repr, known[1:]))}"
            )
        values = dict(data)
        for name, kind in (("guidance", Ramp._make), ("head_steps", tuple)):
            if isinstance(values.get(name), list):
                if len(values[name]) != 2:
                    raise ValueError(f"{name} is {values[name]!r}; a list of it has two numbers")
                values[name] = kind(values[name])
        if isinstance(values.get("head_steps"), int | float | str):
            raise ValueError(f"head_steps is {values['head_steps']!r}; it must be a list of two integers")
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """What `from_dict` reads: everything that differs from the preset."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.full is None:
            del values["local"]
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }

    def scaled(self, tokens: int, known: int) -> Self:
        """The same way of sampling with evaluations for `tokens` alone: half the tokens take half of them."""
        whole = known + tokens
        full, local = (USUAL["full"], USUAL["local"]) if self.full is None else (self.full, self.local)
        full = min(-(-full * tokens // whole), tokens)
        local = min(round(local * tokens / whole), full, tokens - full)
        plain = None if self.plain is None else min(self.plain * tokens // whole, full)
        return replace(self, full=full, local=local, plain=plain)

    def schedule(self, tokens: int = 256, **grouping: Unpack[Grouping]) -> Schedule:
        """The schedule over `tokens`; `full` or `total` replace the model's own numbers of evaluations."""
        given: dict[str, Any] = {name: value for name, value in grouping.items() if value is not None}
        if "full" not in given and "total" not in given:
            own = USUAL if self.full is None else {"full": self.full, "local": self.local, "plain": self.plain}
            given = {**own, **given}
        overrides = {
            "guidance": None if self.guidance is None else usual_guidance(self.preset, self.guidance),
            "temperature": self.temperature,
            "choice_temperature": self.choice_temperature,
            "head_steps": self.head_steps,
        }
        return PRESETS[self.preset](tokens, **{k: v for k, v in overrides.items() if v is not None}, **given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A ReCAP row of the paper's tables: model, setting, full + local evaluations, and u as printed."""

    model: str
    setting: str
    full: int
    local: int
    plain: int

    def schedule(self) -> Schedule:
        return published(self.setting, full=self.full, local=self.local, plain=self.plain)


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
