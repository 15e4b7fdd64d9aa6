"""One request: how images are to be sampled, read from text, JSON or arguments, and written back as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from recap.core.blocks import ROWS
from recap.core.bounds import SCALE
from recap.core.counts import group_lengths
from recap.core.orders import ORDERS
from recap.core.presets import BLOCKWISE, PRESETS, check_family, usual_evaluations, usual_guidance, usual_order
from recap.core.schedule import Ramp, Schedule
from recap.core.steps import BOUNDS, Bound, between, check_value, one_of, whole

GROUPING = ("full", "local", "warmup", "chain")


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How images are sampled: a preset, numbers of evaluations, and what is changed in the preset.

    None leaves a value to whatever these options are put over: first the model's own, then the preset. `full` and
    `local` are numbers of evaluations, `warmup` groups at the start have no local ones (the paper's u), and a group
    has at most `chain` of them. One number of `guidance` means what it usually does for the preset: a ramp from 1
    for MAR, constant otherwise. `head_steps` are the diffusion steps after full and after local evaluations. The
    target set has `target` times as many rows as its group commits, and `coupled` draws of a position use the same
    random numbers; order "informed" means 2 and true unless these are said.

    Text may be decoded in blocks of `block` tokens, with a `threshold` of confidence above which tokens are committed
    at once, and local evaluations of the target set, the block or everything behind (`rows`). `top_k`, `top_p` and
    `confidence` are those of `Step`.
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
    target: float | None = None
    coupled: bool | None = None
    block: int | None = None
    rows: str | None = None
    threshold: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    confidence: str | None = None

    def __post_init__(self) -> None:
        for name, value in self._said().items():
            check_value(name, value, OPTIONS[name][1])
        if self.preset is not None:
            check_family(self.preset, self._said())
        if self.full is not None:
            local = self.local or 0
            group_lengths(self.full, local, self.warmup, self.chain or max(1, -(-local // self.full)))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read `T`, `T+T'`, or either (or nothing) with `:key=value,...` behind it, as in `48+16:warmup=32`."""
        match = re.fullmatch(r"\s*(?:(\d+)(?:\+(\d+))?)?\s*(?::(.*))?\s*", text)
        if match is None or not text.strip():
            raise ValueError(
                f"schedule {text!r} cannot be read; write T or T+T' evaluations and maybe :key=value,... with the "
                f"keys {', '.join(OPTIONS)}, for example 48+16:warmup=32"
            )
        values: dict[str, Any] = {}
        if match[1] is not None:
            values = {"full": int(match[1]), "local": int(match[2] or 0)}
        for part in filter(None, (piece.strip() for piece in (match[3] or "").split(","))):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if key not in OPTIONS or not equals or key in values:
                raise ValueError(f"schedule {text!r} has {part!r}; write each of these once: {', '.join(OPTIONS)}")
            read, (_, expected) = OPTIONS[key]
            try:
                values[key] = read(value)
            except ValueError as error:
                raise ValueError(f"schedule {text!r} has {part!r}; {key} must be {expected}") from error
        try:
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"schedule {text!r}: {error}") from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The options that a parsed JSON object holds; pairs are lists of two numbers."""
        unknown = sorted(set(data) - set(OPTIONS))
        if unknown:
            raise ValueError(f"sampling options have {', '.join(map(repr, unknown))}; known are {', '.join(OPTIONS)}")
        values = dict(data)
        for name, kind in (("guidance", Ramp), ("head_steps", lambda *pair: pair)):
            if isinstance(values.get(name), list) and len(values[name]) == 2:
                values[name] = kind(*values[name])
        return cls(**values)

    @classmethod
    def from_args(cls, args: object) -> Self:
        """The options among parsed arguments: what `schedule` says, and what single arguments add to it."""
        given = getattr(args, "schedule", None)
        text = cls() if given is None else cls.from_text(given)
        alone = {name: getattr(args, name) for name in OPTIONS if getattr(args, name, None) is not None}
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
        if not isinstance(given, SamplingOptions):
            raise ValueError(f"{given!r} says not how to sample; give a text like '48+16', or SamplingOptions")
        base = self
        if given.preset is not None and given.preset != self.preset:
            base = type(self)(**{name: getattr(self, name) for name in GROUPING})
        if given.full is not None:
            base = replace(base, **dict.fromkeys(GROUPING))
        return replace(base, **given._said())

    def shrunk(self, tokens: int, known: int) -> Self:
        """The same options for `tokens` of an image that knows the others: half the tokens take half the evaluations.

        This is the one rule for a model's own numbers of evaluations; numbers that somebody gave are kept.
        """
        whole = known + tokens
        full, local = self.evaluations(whole)
        full = min(-(-full * tokens // whole), tokens)
        local = min(round(local * tokens / whole), full * (self.chain or 1), tokens - full)
        warmup = None if self.warmup is None else min(self.warmup * tokens // whole, full)
        return replace(self, full=full, local=local, warmup=warmup)

    def plain(self, tokens: int = 256) -> Self:
        """The same options without reuse, with as many sub-steps."""
        full, local = self.evaluations(tokens)
        return replace(self, full=full + local, local=0, warmup=None, chain=None)

    def schedule(self, tokens: int = 256, known: int = 0) -> Schedule:
        """The schedule that decodes `tokens` of an image, of which `known` others are there before."""
        if self.preset is None:
            raise ValueError(f"{self} name no preset; put them over a model's own options, or say preset=...")
        full, local = self.evaluations(tokens)
        values = {name: value for name, value in self._said().items() if name not in ("preset", "order")}
        if self.selector_name == "informed" and local and self.preset not in BLOCKWISE:
            values = {"target": 2.0, "coupled": True} | values
        if self.guidance is not None:
            values["guidance"] = usual_guidance(self.preset, self.guidance)
        return PRESETS[self.preset](tokens, **{**values, "full": full, "local": local, "known": known})

    @property
    def selector_name(self) -> str | None:
        """Where to decode first, if these options or their preset say so; else it is for the model to say."""
        return self.order or usual_order(self.preset)

    def evaluations(self, tokens: int) -> tuple[int, int]:
        """Full and local ones; a number of full ones alone means none that are local."""
        full, local = usual_evaluations(self.preset, tokens, self.block) if self.full is None else (self.full, 0)
        return full, local if self.local is None else self.local

    @property
    def text(self) -> str:
        """The text that `from_text` reads back."""
        head = "" if self.full is None else f"{self.full}" + (f"+{self.local}" if self.local else "")
        shown = []
        for name, value in self._said().items():
            if name != "full" and not (name == "local" and self.full is not None):
                pair = isinstance(value, tuple)
                shown.append(f"{name}={'/'.join(map(_short, value)) if pair else _short(value)}")
        return f"{head}:{','.join(shown)}" if shown else head or ":"

    def __str__(self) -> str:
        return self.text

    def json(self) -> dict[str, Any]:
        """What `from_json` reads: everything that is said."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._said().items()}

    def _said(self) -> dict[str, Any]:
        return {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}


def _short(value: object) -> str:
    """A number in few digits, if these mean the same number; any other value as it is."""
    if isinstance(value, bool):
        return str(value).lower()
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


def truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def pair_of(bound: Bound) -> Bound:
    fits, expected = bound
    return (
        lambda value: isinstance(value, tuple) and len(value) == 2 and all(map(fits, value)),
        f"a pair, after full and after local evaluations, each {expected}",
    )


def scale_or_ramp(value: object) -> bool:
    fits = BOUNDS["guidance"][0]
    return all(map(fits, value)) if isinstance(value, Ramp) else fits(value)


OPTIONS: dict[str, tuple[Callable[[str], Any], Bound]] = {  # how each is read from text, and what it must be
    "preset": (str, one_of(PRESETS)),
    "full": (int, whole(1)),
    "local": (int, whole(0)),
    "warmup": (int, whole(0)),
    "chain": (int, whole(1)),
    "guidance": (guidance_scale, (scale_or_ramp, "a finite number, or START/END ([START, END] in JSON)")),
    "temperature": (float, BOUNDS["temperature"]),
    "choice_temperature": (float, BOUNDS["choice_temperature"]),
    "head_steps": (head_steps, pair_of(BOUNDS["head_steps"])),
    "solver": (str, BOUNDS["solver"]),
    "order": (str, one_of(ORDERS)),
    "target": (float, (between(1, SCALE), f"a number from 1 to {SCALE:g}")),
    "coupled": (truth, (lambda value: isinstance(value, bool), "true or false")),
    "block": (int, whole(1)),
    "rows": (str, one_of(ROWS)),
    "threshold": (float, BOUNDS["threshold"]),
    "top_k": (int, BOUNDS["top_k"]),
    "top_p": (float, BOUNDS["top_p"]),
    "confidence": (str, BOUNDS["confidence"]),
}
