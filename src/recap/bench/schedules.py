"""Lists of schedules by name: the usual ones, those of the paper's tables, and what the paper leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from recap.core.options import SamplingOptions
from recap.core.presets import DIFFUSION, PAPER_PLAIN, PAPER_ROWS, TEXT
from recap.core.schedule import Schedule

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
TEXTS = [  # of 256 tokens, all drawn at temperature 1
    *("4", "8", "16", "32", "48", "64", "128", "256"),
    *("16+16", "16+48", "16+112", "32+32", "32+96", "64+64", "32+224", "64+192", "128+128"),
    *("16+48:preset=informed", "32+96:preset=informed", "64+64:preset=informed"),
    *("32:block=32", "64:block=32", "8+56:preset=fast-dllm-dual,temperature=1"),
]
TEXTS_OPEN = [  # another temperature, and the surest tokens first
    *(f"{text}:temperature=0.8" for text in ("16", "32", "64", "16+48", "32+96")),
    *("32:order=confidence", "64:order=confidence", "16+48:preset=informed,chain=3,warmup=0"),
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
    elif preset in TEXT:
        texts = TEXTS if name == "usual" else TEXTS_OPEN
    else:
        texts = USUAL if name == "usual" else OPEN + (OPEN_HEAD if preset in DIFFUSION else [])
    schedules = [SamplingOptions.from_text(text) for text in texts]
    return [each for each in schedules if (each.full or 0) + (each.local or 0) <= tokens]


def checked(
    schedule: Callable[[SamplingOptions], Schedule], given: Iterable[SamplingOptions]
) -> list[SamplingOptions]:
    """The schedules, each once, if the model can follow all of them; `schedule` makes them of options."""
    distinct: dict[object, SamplingOptions] = {}  # two texts may mean the same: 32+32 and 32+32:warmup=0
    for options in given:
        try:
            distinct.setdefault((schedule(options), options.selector_name, options.block), options)
        except ValueError as error:
            raise ValueError(f"schedule {options}: {error}") from error
    return list(distinct.values())
