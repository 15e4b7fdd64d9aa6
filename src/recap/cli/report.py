"""Write a page of results from what `recap sweep` and `recap drift` measured.

Reads FOLDER/sweep.json of every sweep, and drift.png and error.png where a folder has them; copies the plots next to
the page. With --against paper, figures published for a size stand beside measurements of the same schedule.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from recap.checkpoints.safe_files import read_text
from recap.evaluation.report import page, published, read_sweep, section
from recap.view.say import say

PICTURES = {
    "sweep.png": "FID against seconds an image",
    "compare.png": "Plain and reused decoding of the same seeds",
    "compare.jpg": "Plain and reused decoding of the same seeds",  # for pages that must stay small
    "drift.png": "Drift of context features",
    "error.png": "Error of local evaluations",
}
TEXTS = {"sweep.png": "Perplexity and entropy against seconds a text"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="results of `recap sweep`")
    parser.add_argument("--findings", metavar="FILE", help="Markdown that goes before the tables")
    parser.add_argument("--against", choices=("paper",), help="show published figures beside ours")
    size = "published size to show (default: the model's name)"
    parser.add_argument("--as", dest="size", metavar="SIZE", help=size)
    out = "the page to write, and the folder of its pictures beside it"
    parser.add_argument("--out", required=True, metavar="FILE", help=out)


def run(args: argparse.Namespace) -> int:
    sweeps = [(Path(folder), read_sweep(folder)) for folder in args.folders]
    findings = read_text(args.findings).strip() if args.findings else ""
    out = Path(args.out)
    beside = out.with_suffix("")
    beside.mkdir(parents=True, exist_ok=True)
    sections = []
    for folder, sweep in sweeps:
        model, shown = sweep.about["model"], {}
        for file, text in {**PICTURES, **(TEXTS if sweep.modality == "text" else {})}.items():
            if (folder / file).is_file():
                copy = beside / f"{Path(model).name}-{file}"
                shutil.copyfile(folder / file, copy)
                shown[text] = f"{beside.name}/{copy.name}"
        sweep.write(beside / f"{Path(model).name}.json")
        against = published(args.size or model) if args.against else ()
        sections.append(section(sweep, shown, against))
    text = page(sections, findings)
    out.write_text(text)
    say(f"{len(sweeps)} models, {sum(len(sweep.rows) for _, sweep in sweeps)} schedules -> {out}")
    return 0
