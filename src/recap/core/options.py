"""One request: how images are to be sampled, read from text, JSON or arguments, and written back as text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from recap.core.counts import group_lengths
from recap.core.presets import PRESETS, is_diffusion, usual_guidance
from recap.core.schedule import SOLVERS, Ramp, Schedule
from recap.core.selection import ORDERS

USUAL = (48, 16)  # full and local evaluations of models that say nothing of their own
GROUPING = ("full", "local", "warmup", "chain")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How images are sampled: a preset, numbers of evaluations, and what is changed in the preset.

    None leaves a value to whatever these options are put over: first the model's own, then the preset. `full` and
    `local` are numbers of evaluations, `warmup` groups at the start have no local ones (the paper's u), and a group
    has at most `chain` of them. One number of `guidance` means what it usually does for the preset: a ramp from 1
    for MAR, constant otherwise. `head_steps` are the diffusion steps after full and after local evaluations.
    """

    preset: str | None = None
    full: int | None = None
    local: int | None = None
    warmup: int | None = None
    chain: int | None = None
    guidance: float | Ramp | None = None
    temperature: float | None = None
    choice_temperature: float | None = None
    head_steps: tuple[int, int] | None = None
    solver: str | None = None
    order: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("preset", PRESETS), ("solver", SOLVERS), ("order", ORDERS)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value in known):
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        self._check_numbers()
        if self.preset is not None and is_diffusion(self.preset) and self.choice_temperature is not None:
            raise ValueError(f"preset {self.preset!r} decodes in random order; leave choice_temperature out")
        if self.preset is not None and not is_diffusion(self.preset) and (self.head_steps or self.solver):
            raise ValueError(f"preset {self.preset!r} has no diffusion head; leave head_steps and solver out")
        if self.full is not None:
            group_lengths(self.full, self.local or 0, self.warmup, self.chain or 1)

    def _check_numbers(self) -> None:
        scales = self.guidance if isinstance(self.guidance, Ramp) else (self.guidance,)
        if self.guidance is not None and not all(map(_is_number, scales)):
            raise ValueError(f"guidance is {self.guidance!r}; it must be a finite number or a pair [start, end]")
        if self.temperature is not None and not (_is_number(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature is {self.temperature!r}; it must be a positive number")
        choice = self.choice_temperature
        if choice is not None and not (_is_number(choice) and choice >= 0):
            raise ValueError(f"choice_temperature is {choice!r}; it must be 0 (greedy) or more")
        for name in GROUPING:
            value, least = getattr(self, name), int(name in ("full", "chain"))
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}")
        steps = self.head_steps
        if steps is not None and not (
            isinstance(steps, tuple) and len(steps) == 2 and all(type(n) is int and n >= 2 for n in steps)
        ):
            raise ValueError(f"head_steps is {steps!r}; it must be two integers of at least 2, for full and local")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read `T`, `T+T'`, or either (or nothing) with `:key=value,...` behind it, as in `48+16:warmup=32`."""
        match = re.fullmatch(r"\s*(?:(\d+)(?:\+(\d+))?)?\s*(?::(.*))?\s*", text)
        if match is None or not text.strip():
            raise ValueError(
                f"schedule {text!r} cannot be read; write T or T+T' evaluations and maybe :key=value,... with the "
                f"keys {', '.join(_READ)}, for example 48+16:warmup=32"
            )
        values: dict[str, Any] = {}
        if match[1] is not None:
            values = {"full": int(match[1]), "local": int(match[2] or 0)}
        for part in filter(None, (piece.strip() for piece in (match[3] or "").split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in _READ or not equals or key in values:
                raise ValueError(f"schedule {text!r} has {part!r}; write each once: {'; '.join(_SAY.values())}")
            try:
                values[key] = _READ[key](value)
            except ValueError as error:
                raise ValueError(f"schedule {text!r} has {part!r}; expected {_SAY[key]}") from error
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"schedule {text!r}: {error}") from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The options that a parsed JSON object holds; pairs are lists of two numbers."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise ValueError(f"sampling options have {', '.join(map(repr, unknown))}; known are {', '.join(known)}")
        values = dict(data)
        for name, kind in (("guidance", Ramp._make), ("head_steps", tuple)):
            if isinstance(values.get(name), list):
                if len(values[name]) != 2:
                    raise ValueError(f"{name} is {values[name]!r}; a list of it has two numbers")
                values[name] = kind(values[name])
        return cls(**values)

    @classmethod
    def from_args(cls, args: object) -> Self:
        """The options among parsed arguments: what `schedule` says, and what single arguments add to it."""
        given = getattr(args, "schedule", None)
        text = cls() if given is None else cls.from_text(given)
        names = [field.name for field in fields(cls)]
        alone = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
        for name in alone:
            said = getattr(text, name)
            if said is not None:
                option = "--" + name.replace("_", "-")
                raise ValueError(f"--schedule {given} says {name} already; leave {option} or that part of it out")
        return replace(text, **alone)

    def override(self, given: SamplingOptions) -> Self:
        """These options with what is `given` in the place of theirs.

        Another preset brings its own values and leaves only the numbers of evaluations. Where `full` is given,
        nothing of the grouping here is left.
        """
        changes = {name: value for name, value in _said(given).items() if value is not None}
        base = self
        if given.preset is not None and given.preset != self.preset:
            base = type(self)(**{name: getattr(self, name) for name in GROUPING})
        if given.full is not None:
            base = replace(base, **dict.fromkeys(GROUPING))
        return replace(base, **changes)

    def shrunk(self, tokens: int, known: int) -> Self:
        """The same options for `tokens` of an image that knows the others: half the tokens take half the evaluations.

        This is the one rule for a model's own numbers of evaluations; numbers that somebody gave are kept.
        """
        whole = known + tokens
        full, local = USUAL if self.full is None else (self.full, self.local or 0)
        full = min(-(-full * tokens // whole), tokens)
        local = min(round(local * tokens / whole), full * (self.chain or 1), tokens - full)
        warmup = None if self.warmup is None else min(self.warmup * tokens // whole, full)
        return replace(self, full=full, local=local, warmup=warmup)

    def plain(self) -> Self:
        """The same options without reuse, with as many sub-steps."""
        full, local = USUAL if self.full is None else (self.full, self.local or 0)
        return replace(self, full=full + local, local=0, warmup=None, chain=None)

    def schedule(self, tokens: int = 256, known: int = 0) -> Schedule:
        """The schedule that decodes `tokens` of an image, of which `known` others are there before."""
        if self.preset is None:
            raise ValueError(f"{self} name no preset; put them over a model's own options, or say preset=...")
        full, local = USUAL if self.full is None else (self.full, self.local or 0)
        if self.full is None and self.local is not None:
            local = self.local
        changes = {
            "guidance": None if self.guidance is None else usual_guidance(self.preset, self.guidance),
            "temperature": self.temperature,
            "choice_temperature": self.choice_temperature,
            "head_steps": self.head_steps,
            "solver": self.solver,
        }
        return PRESETS[self.preset](
            tokens,
            **{name: value for name, value in changes.items() if value is not None},
            full=full,
            local=local,
            warmup=self.warmup,
            chain=self.chain or 1,
            known=known,
        )

    @property
    def text(self) -> str:
        """The text that `from_text` reads back."""
        head = "" if self.full is None else f"{self.full}" + (f"+{self.local}" if self.local else "")
        shown = []
        for name, value in _said(self).items():
            if value is not None and name != "full" and not (name == "local" and self.full is not None):
                pair = isinstance(value, tuple)
                shown.append(f"{name}={'/'.join(map(_short, value)) if pair else _short(value)}")
        return f"{head}:{','.join(shown)}" if shown else head or ":"

    def __str__(self) -> str:
        return self.text

    def json(self) -> dict[str, Any]:
        """What `from_json` reads: everything that is said."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in _said(self).items()
            if value is not None
        }


def _said(options: SamplingOptions) -> dict[str, Any]:
    return {field.name: getattr(options, field.name) for field in fields(options)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: object) -> str:
    """A number in few digits, if these mean the same number; any other value as it is."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def guidance_scale(text: str) -> float | Ramp:
    """A number, or two with a stroke between them: at the first and at the last token."""
    values = [float(part) for part in text.split("/")]
    if len(values) > 2:
        raise ValueError(text)
    return Ramp(*values) if len(values) == 2 else values[0]


def head_steps(text: str) -> tuple[int, int]:
    """Diffusion steps after full and after local evaluations, one number for both or two with a stroke between."""
    first, _, second = text.partition("/")
    return int(first), int(second or first)


_READ: dict[str, Callable[[str], Any]] = {
    "preset": str,
    "local": int,
    "warmup": int,
    "chain": int,
    "guidance": guidance_scale,
    "temperature": float,
    "choice_temperature": float,
    "head_steps": head_steps,
    "solver": str,
    "order": str,
}
_SAY = {
    "preset": f"preset={'|'.join(PRESETS)}",
    "local": "local=EVALUATIONS where full ones are the model's own",
    "warmup": "warmup=GROUPS at the start without local evaluations",
    "chain": "chain=LOCAL evaluations that a group may have",
    "guidance": "guidance=S or guidance=START/END",
    "temperature": "temperature=T of the draws",
    "choice_temperature": "choice_temperature=T of the choice of positions",
    "head_steps": "head_steps=FULL/LOCAL diffusion steps",
    "solver": f"solver={'|'.join(SOLVERS)}",
    "order": f"order={'|'.join(ORDERS)}",
}
