"""Lists of schedules by name: the usual ones, those of the paper's tables, and what the paper leaves open."""

from __future__ import annotations

from collections.abc import Iterable

from recap.core.options import SamplingOptions
from recap.core.presets import DIFFUSION, PAPER_PLAIN, PAPER_ROWS
from recap.core.schedule import Schedule
from recap.pipelines.base import ModelPipeline as Pipeline

LISTS = ("usual", "paper", "open")
PAPER_MODELS = tuple(dict.fromkeys(row.model for row in PAPER_ROWS))
USUAL = [
    *("8", "12", "16", "24", "32", "48", "64"),
    *("12+4", "16+16", "24+8", "24+24", "32+16", "32+32", "48+16", "48+48"),
]
OPEN = [  # longer chains, and where local evaluations stand
    *("32+32:warmup=0", "22+42:warmup=0,chain=2", "16+48:warmup=0,chain=3", "8+56:warmup=0,chain=7"),
    *("48+16:warmup=0", "48+16:warmup=32"),
]
OPEN_HEAD = [  # steps of a diffusion head
    *("64:head_steps=100", "64:head_steps=50", "64:head_steps=25"),
    *("32+32:head_steps=100/100", "32+32:head_steps=100/25", "32+32:head_steps=50/25"),
]


def listed(name: str, model: str, preset: str, tokens: int) -> list[SamplingOptions]:
    """The schedules of a list for a model that follows a preset, but for those with more evaluations than tokens.

    The paper's are the rows of this size, or of its whole family where the paper has none of it, and plain decoding
    in the counts of its tables and in as many sub-steps as these rows.
    """
    if name == "paper":
        family = (preset or model).partition("-")[0]
        if family not in PAPER_PLAIN:
            raise ValueError(f"the paper has no rows of {model}; it has some of {', '.join(PAPER_MODELS)}")
        rows = [row for row in PAPER_ROWS if row.model == model]
        rows = rows or [row for row in PAPER_ROWS if row.model.startswith(family)]
        steps = {*PAPER_PLAIN[family], *(row.full + row.local for row in rows)}
        texts = [*map(str, sorted(steps)), *(f"{row.full}+{row.local}:warmup={row.warmup}" for row in rows)]
    else:
        texts = USUAL if name == "usual" else OPEN + (OPEN_HEAD if preset in DIFFUSION else [])
    schedules = [SamplingOptions.from_text(text) for text in texts]
    return [each for each in schedules if (each.full or 0) + (each.local or 0) <= tokens]


def checked(pipe: Pipeline, given: Iterable[SamplingOptions]) -> list[SamplingOptions]:
    """The schedules, each once, if the model can follow all of them."""
    distinct: dict[Schedule, SamplingOptions] = {}  # two texts may mean the same: 32+32 and 32+32:warmup=0
    for options in given:
        try:
            distinct.setdefault(pipe.schedule(options), options)
        except ValueError as error:
            raise ValueError(f"schedule {options}: {error}") from error
    return list(distinct.values())
