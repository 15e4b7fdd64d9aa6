"""A way of sampling in a line of text, as tables and plots show it: `48+16:u=8,chain=2`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from recap.core.presets import Sampling, usual_guidance
from recap.core.schedule import SOLVERS, Ramp, Schedule


@dataclass(frozen=True, slots=True)
class Setting:
    """T + T' evaluations and what differs from the model's own way; None and the defaults change nothing."""

    full: int
    local: int = 0
    plain: int | None = None
    chain: int = 1
    spread: bool = False
    renew: str = "group"
    head_steps: tuple[int, int] | None = None
    guidance: float | Ramp | None = None
    temperature: float | None = None
    choice_temperature: float | None = None
    within: tuple[float, float] | None = None
    anneal: Ramp | None = None
    solver: str | None = None
    borrow: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `T`, `T+T'`, or either with `:key=value,...` behind it."""
        match = re.fullmatch(r"\s*(\d+)(?:\+(\d+))?(?::(.*))?\s*", text)
        if match is None:
            raise ValueError(
                f"setting {text!r} cannot be read; write T or T+T' and maybe :key=value,... with the keys "
                f"{', '.join(_KEYS)}, for example 48+16:u=8,chain=2"
            )
        values: dict[str, Any] = {}
        for part in filter(None, (match[3] or "").split(",")):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in _KEYS or bool(equals) == (key in ("spread", "borrow")):
                raise ValueError(f"setting {text!r} has {part.strip()!r}; known are {', '.join(_KEYS.values())}")
            name, read = _READ[key]
            try:
                values[name] = read(value)
            except ValueError as error:
                raise ValueError(f"setting {text!r} has {part.strip()!r}; expected {_KEYS[key]}") from error
        return cls(int(match[1]), int(match[2] or 0), **values)

    def __str__(self) -> str:
        """The text that `parse` reads back."""
        shown = []
        if self.plain is not None:
            shown.append(f"u={self.plain}")
        if self.chain != 1:
            shown.append(f"chain={self.chain}")
        if self.spread:
            shown.append("spread")
        if self.renew != "group":
            shown.append(f"renew={self.renew}")
        if self.borrow:
            shown.append("borrow")
        if self.head_steps is not None:
            shown.append(f"head={self.head_steps[0]}/{self.head_steps[1]}")
        if self.anneal is not None:
            shown.append(f"anneal={_short(self.anneal.start)}/{_short(self.anneal.end)}")
        if self.solver is not None:
            shown.append(f"solver={self.solver}")
        if self.within is not None:
            shown.append(f"within={_short(self.within[0])}/{_short(self.within[1])}")
        for key, value in (
            ("guidance", self.guidance),
            ("temp", self.temperature),
            ("choice", self.choice_temperature),
        ):
            if value is not None:
                shown.append(f"{key}={'/'.join(map(_short, value)) if isinstance(value, Ramp) else _short(value)}")
        head = f"{self.full}+{self.local}" if self.local else f"{self.full}"
        return f"{head}:{','.join(shown)}" if shown else head

    def sampling(self, own: Sampling) -> Sampling:
        """The model's own way with what this setting changes in the draws."""
        changes: dict[str, Any] = {
            "head_steps": self.head_steps,
            "temperature": self.temperature,
            "choice_temperature": self.choice_temperature,
            "guidance": None if self.guidance is None else usual_guidance(own.preset, self.guidance),
        }
        return replace(own, **{name: value for name, value in changes.items() if value is not None})

    def schedule(self, own: Sampling, tokens: int) -> Schedule:
        """The schedule of this setting for a model that is usually sampled in its `own` way."""
        schedule = self.sampling(own).schedule(
            tokens,
            full=self.full,
            local=self.local,
            plain=self.plain,
            chain=self.chain,
            spread=self.spread,
            renew=self.renew,
        )
        if self.anneal is not None or self.solver is not None:
            if not own.preset.startswith("mar"):
                raise ValueError(f"preset {own.preset!r} has no diffusion head; leave anneal and solver out")
            schedule = schedule.with_head(self.anneal, self.solver)
        schedule = schedule.borrowing() if self.borrow else schedule
        return schedule if self.within is None else schedule.guided_within(*self.within)


def _short(value: float) -> str:
    """A number in few digits, if these mean the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _pair(text: str) -> tuple[int, int]:
    first, _, second = text.partition("/")
    return int(first), int(second or first)


def _scale(text: str) -> float | Ramp:
    values = [float(part) for part in text.split("/")]
    if len(values) > 2:
        raise ValueError(text)
    return Ramp(*values) if len(values) == 2 else values[0]


def _shares(text: str) -> tuple[float, float]:
    first, last = (float(part) for part in text.split("/"))
    return first, last


def _ramp(text: str) -> Ramp:
    return Ramp(*_shares(text))


def _solver(text: str) -> str:
    if text not in SOLVERS:
        raise ValueError(text)
    return text


def _renewal(text: str) -> str:
    if text not in ("group", "arrived"):
        raise ValueError(text)
    return text


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "u": ("plain", int),
    "chain": ("chain", int),
    "spread": ("spread", lambda _: True),
    "renew": ("renew", _renewal),
    "borrow": ("borrow", lambda _: True),
    "head": ("head_steps", _pair),
    "anneal": ("anneal", _ramp),
    "solver": ("solver", _solver),
    "guidance": ("guidance", _scale),
    "within": ("within", _shares),
    "temp": ("temperature", float),
    "choice": ("choice_temperature", float),
}
_KEYS = {
    "u": "u=GROUPS without local evaluations at the start",
    "chain": "chain=LOCAL evaluations a group may have",
    "spread": "spread (no value)",
    "renew": "renew=group or renew=arrived",
    "borrow": "borrow (no value)",
    "head": "head=FULL/LOCAL diffusion steps",
    "anneal": "anneal=FIRST/LAST diffusion steps, from the first token to the last",
    "solver": f"solver={' or solver='.join(SOLVERS)}",
    "guidance": "guidance=S or guidance=START/END",
    "within": "within=FROM/TO, shares of tokens between which there is guidance",
    "temp": "temp=TEMPERATURE of the draws",
    "choice": "choice=TEMPERATURE of the choice of positions",
}
