"""Results as a page: tables in the paper's form, plots, pictures, and the commands behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recap.bench.measure import times
from recap.bench.timing import PHASES
from recap.evaluation import text_report
from recap.evaluation.sweep import Sweep, SweepRow, noise
from recap.view.table import markdown

PAPER = Path(__file__).parent / "paper.json"  # published figures, none of them ours
NOTES = {  # under the heading of a table
    "images": "Warm-up is the number of groups without local evaluations at the start.",
    "text": text_report.NOTE,
}
FAMILY_NAMES = {"maskgit": "MaskGIT", "mage": "MAGE", "mar": "MAR"}


def read_sweep(folder: str | Path) -> Sweep:
    """FOLDER/sweep.json, with all that a page needs."""
    path = Path(folder) / "sweep.json"
    try:
        sweep = Sweep.read(path)
        section(sweep, {})  # what the page cannot do without shows now
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist; write it with `recap sweep --out {folder}`") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path} is no result of `recap sweep` ({error!r}); run it again") from error
    return sweep


def published(model: str | None = None) -> list[dict[str, Any]]:
    """Rows of the paper's tables, those of one published size if it is named."""
    rows: list[dict[str, Any]] = json.loads(PAPER.read_text())["rows"]
    return rows if model is None else [row for row in rows if row.get("model") == model]


def sweep_table(sweep: Sweep, against: Sequence[Mapping[str, Any]] = ()) -> str:
    """One line a schedule: quality, time, and what reuse gains."""
    ordered = sorted(sweep.rows, key=lambda row: (row.alike, row.reused, row.steps, row.seconds))
    if sweep.modality == "text":
        return markdown([text_report.cells_of(row) for row in ordered])
    return markdown([cells_of(row, against) for row in ordered])


def cells_of(row: SweepRow, against: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    steps, quality = row.against.get("equal_steps"), row.against.get("equal_quality")
    best = f"{times(quality['speedup'])}, {quality['schedule']}" if quality else "no plain schedule as good"
    theirs = next((p for p in against if (p.get("full"), p.get("local")) == row.counts), {})
    return {
        "evaluations": row.schedule,
        "warm-up": str(row.warmup) if row.reused else "",
        "FID": f"{row.quality:.2f}",
        "± over seeds": "" if row.spread is None else f"{row.spread:.2f} ({row.seeds})",
        "s/image": f"{row.seconds:.4g}",
        **{phase: f"{row.phases.get(phase, 0.0):.3g}" for phase in PHASES if phase != "total"},
        "at equal steps": times(steps["speedup"]) if steps else "",
        "at equal FID, against": best if row.reused else "",
        "front": "yes" if row.front else "",
        "published FID": str(theirs.get("fid", "")),
        "published s/image": str(theirs.get("seconds", "")),
    }


def verdict(sweep: Sweep) -> str:
    """In plain words: where reuse helps against the best plain decoding of equal time, and where not."""
    if sweep.modality == "text":
        return text_report.verdict(sweep.rows)
    margin, compared = noise(sweep.rows), [row for row in sweep.rows if "equal_time" in row.against]
    gains = [row.against["equal_time"]["gain"] for row in compared]
    if not gains:
        return "No reused schedule is as slow as a plain one, so equal times cannot be compared."
    better, worse = (sum(sign * gain > margin for gain in gains) for sign in (1, -1))
    words = [
        f"At equal time, {better} of {len(gains)} reused schedules beat the best plain decoding by more than "
        f"the noise ({margin:.2f} FID{', two deviations over seeds' if margin else ', not measured'}), "
        f"{len(gains) - better - worse} are level with it and {worse} lose to it."
    ]
    if better:
        best = max(compared, key=lambda row: row.against["equal_time"]["gain"])
        equal = best.against["equal_time"]
        words.append(
            f"The largest gain is {best.schedule}: FID {best.quality:.2f} against {equal['quality']:.2f} of "
            f"{equal['schedule']} plain steps."
        )
    return " ".join(words)


def conditions(about: Mapping[str, Any]) -> str:
    """How a sweep was measured, and on what."""
    machine = about["machine"]
    if about.get("modality") == "text":
        what = text_report.conditions(about)
    else:
        what = f"{about['num']:,} images a point against {about['reference']}"
    return (
        f"{what}, batch {about['batch']}, {about['dtype']}, "
        f"engine {about.get('engine', 'eager')}, on {machine['device']}, torch {machine['torch']}, {machine['date']}"
    )


def section(sweep: Sweep, pictures: Mapping[str, str], against: Sequence[Mapping[str, Any]] = ()) -> str:
    """Everything about one model; `pictures` are files by what they show."""
    about = sweep.about
    how = f"{conditions(about)}. Sampling: `{json.dumps(about['sampling'])}`. {NOTES[sweep.modality]}"
    length = f"--length {about['length']} " if "length" in about else ""
    command = (
        f"```console\n$ recap sweep --model {about['model']} --num {about['num']} {length}--batch {about['batch']} "
        f"--dtype {about['dtype']} --engine {about.get('engine', 'eager')} "
        f"--schedule {' '.join(row.schedule for row in sweep.rows)}\n```"
    )
    parts = [f"## {about['model']} ({FAMILY_NAMES.get(about['family'], about['family'])})", how, verdict(sweep)]
    parts += [f"![{text}]({file})" for text, file in pictures.items()]
    return "\n\n".join([*parts, sweep_table(sweep, against), command])


def page(sections: Sequence[str], findings: str = "") -> str:
    head = (
        "# Results\n\nQuality against time, measured with the commands below each table. Times are those of "
        "generating alone, not of looking at what comes out; they are seconds an image or text on one machine, and "
        'compare with each other only. "At equal FID" is against the fastest plain schedule that is at least as good.'
    )
    return "\n\n".join([head, *([findings] if findings else []), *sections]) + "\n"
