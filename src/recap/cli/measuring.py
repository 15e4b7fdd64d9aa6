"""How a model of images, or of text, is measured: what is drawn, what is kept of it, and the figures."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from recap.bench.pairs import Spent, draw_in_turn
from recap.bench.timing import seconds_an_image
from recap.cli.options import add_batch, add_model, add_running
from recap.cli.write import prompts_of
from recap.core.options import SamplingOptions
from recap.core.schedule import Schedule
from recap.evaluation.evaluate import Reference, compare
from recap.evaluation.features import Features, load_inception
from recap.evaluation.perplexity import FILE
from recap.evaluation.shards import FeatureFolder
from recap.evaluation.sweep import Point
from recap.evaluation.text_points import alike
from recap.evaluation.texts import (
    JudgedFolder,
    judged_all,
    load_judge,
    read_texts_of,
    shown,
    text_figures,
    write_texts,
)
from recap.pipelines import Pipeline, TextPipeline
from recap.pipelines.inputs import proportional_labels
from recap.planning.memory import choose_batch
from recap.runs.draw import ALONE
from recap.runs.folder import RunFolder
from recap.runs.ranks import Ranks
from recap.runs.record import digest, fingerprint, identity
from recap.runs.works import Work
from recap.view.progress import tqdm
from recap.view.say import say

TIMED = 256  # images of a run that is made for its time
ROUNDS, FIRST_ROUNDS = 9, 1  # texts of each schedule that are timed in turn with those of others, and alone
LENGTH = 256  # tokens of a text, or what the model has


def add_measuring(parser: argparse.ArgumentParser, out: str) -> None:
    """Arguments that `recap evaluate` and `recap sweep` share."""
    add_model(parser)
    add_batch(parser, 32)
    add_running(parser)
    usual = "how many images or texts (default 2048 or 256; published: 50,000 images)"
    parser.add_argument("--num", type=int, help=usual)
    parser.add_argument("--seed", type=int, default=0, help="of the images or texts (default 0)")
    parser.add_argument("--out", default=out, help=f"folder for the results (default {out})")
    group = parser.add_argument_group("images")
    stats = "what to compare with: npz with mu and sigma, images, or a name (default flowers128)"
    group.add_argument("--stats", default="flowers128", metavar="PATH", help=stats)
    group.add_argument("--inception", metavar="FILE", help="weights of the network (default: from the extra `eval`)")
    classes = "each class as often as any other (default: as in the reference, where it says)"
    group.add_argument("--classes", choices=("even",), help=classes)
    group = parser.add_argument_group("text")
    about = f"tokens of a text behind its prompt (default {LENGTH}, or what the model has)"
    group.add_argument("--length", type=int, metavar="N", help=about)
    group.add_argument("--prompts", metavar="FILE", help="what texts begin with, taken in turn, one on each line")


class Meter(Protocol):
    """One modality, measured."""

    about: dict[str, Any]  # what figures depend on, beside the model

    def schedule(self, options: SamplingOptions) -> Schedule:
        """What options mean here."""

    def works(self, options: SamplingOptions, seed: int) -> list[Work]:
        """What is drawn."""

    def folder(self, path: Path, works: Sequence[Work]) -> RunFolder:
        """Where it is kept until all of it is measured."""

    def figures(self, folder: RunFolder) -> dict[str, float]:
        """What all of it is like."""

    def says(self, figures: Mapping[str, float]) -> str:
        """The figures, for people."""

    def seconds(self, works: Sequence[Work]) -> dict[str, float]:
        """Seconds of one image or text, in a run for that alone."""

    def point(self, schedule: str, seed: int, works: Sequence[Work], folder: RunFolder) -> Point:
        """A finished point; what is not to stay of its folder is removed."""

    def mended(self, points: Sequence[Point], out: Path) -> list[Point]:
        """The points of earlier, with figures that can be had only now."""

    def untimed(self, points: Sequence[Point]) -> bool:
        """Whether times are to be taken in the end."""

    def retimed(self, points: Sequence[Point], jobs: Mapping[str, Sequence[Work]]) -> list[Point]:
        """The points with times of runs that were made for these; there is a job for each schedule."""


def meter_of(args: argparse.Namespace, pipe: Pipeline | TextPipeline, ranks: Ranks) -> Meter:
    """The one for a pipeline; `args` gets the number that is usual for it."""
    if isinstance(pipe, TextPipeline):
        return TextMeter(args, pipe)
    return ImageMeter(args, pipe, ranks)


class ImageMeter:
    """Images: what a network sees in them, compared with a reference."""

    def __init__(self, args: argparse.Namespace, pipe: Pipeline, ranks: Ranks) -> None:
        pipe.check_output("pil")
        if args.length is not None or args.prompts is not None:
            raise ValueError("--length and --prompts are for texts, and this model draws images; leave them out")
        args.num = 2048 if args.num is None else args.num
        self.args, self.pipe = args, pipe
        self.net = load_inception(args.inception).to(args.device)
        compared = ranks.first and args.stats != "none"
        self.reference = Reference.load(args.stats, self.net) if compared else None
        if ranks.first:
            ranks.put("classes", None if self.reference is None else self.reference.statistics.classes)
        self.plan, labels = plan_of(args, pipe, ranks.get("classes"))
        self.about = {"reference": args.stats, "classes": labels}

    def schedule(self, options: SamplingOptions) -> Schedule:
        return self.pipe.schedule(options)

    def works(self, options: SamplingOptions, seed: int) -> list[Work]:
        """Image i has its own seed and label, whatever the batch, which is chosen here."""
        args, limit = self.args, self.args.cache_limit
        self.pipe.batch_size = choose_batch(
            self.pipe, self.pipe.schedule(options), args.batch, args.num, cache_limit=limit
        )
        return self.pipe.works(self.plan, args.num, options, seed=seed)

    def folder(self, path: Path, works: Sequence[Work]) -> RunFolder:
        return FeatureFolder(path, len(works), self.known(works), self.net)

    def known(self, works: Sequence[Work]) -> dict[str, Any]:
        return {**identity(self.pipe, works), "inception": self.args.inception}

    def figures(self, folder: RunFolder) -> dict[str, float]:
        assert isinstance(folder, FeatureFolder)
        return {} if self.reference is None else figures_of(folder.read(), self.reference)

    def says(self, figures: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "statistics only"

    def seconds(self, works: Sequence[Work]) -> dict[str, float]:
        return seconds_an_image(self.pipe, works)

    def point(self, schedule: str, seed: int, works: Sequence[Work], folder: RunFolder) -> Point:
        figures, seconds = self.figures(folder), self.seconds(works)
        return Point(schedule, seed, len(works), figures, seconds, works[0].schedule.warmup)

    def mended(self, points: Sequence[Point], out: Path) -> list[Point]:
        return list(points)

    def untimed(self, points: Sequence[Point]) -> bool:
        return False

    def retimed(self, points: Sequence[Point], jobs: Mapping[str, Sequence[Work]]) -> list[Point]:
        batches = max(1, TIMED // self.pipe.batch_size)
        times = {
            name: seconds_an_image(self.pipe, works, batches=batches)
            for name, works in tqdm(jobs.items(), desc="times", unit="schedule")
        }
        return [replace(point, seconds=times[point.schedule]) for point in points]


def plan_of(
    args: argparse.Namespace, pipe: Pipeline, counts: Sequence[int] | None
) -> tuple[list[int] | None, str | None]:
    """Which classes are generated, and the word for it; `counts` say how often each is in the reference."""
    classes = pipe.model.classes
    if not classes:
        return None, None
    if counts is None or len(counts) != classes or args.classes:
        return [index % classes for index in range(args.num)], "even"
    return proportional_labels(args.num, counts), "reference"


def figures_of(seen: Features, reference: Reference) -> dict[str, float]:
    """The figures, with a word about too few images instead of a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures = compare(seen, reference)
    for warning in caught:
        say(f"warning: {warning.message}")
    return figures


class TextMeter:
    """Texts: what a judge says of them, and how rich they are.

    All are of one length, and what follows the end of a text counts: figures depend on lengths.
    """

    def __init__(self, args: argparse.Namespace, pipe: TextPipeline) -> None:
        if args.classes is not None or args.inception is not None:
            raise ValueError("--classes and --inception are for images, and this model writes text; leave them out")
        args.num = 256 if args.num is None else args.num
        if args.num < 2:
            raise ValueError(f"--num is {args.num}; standard errors need 2 texts or more")
        pipe.need_tokenizer()
        self.args, self.pipe = args, pipe
        prompts = prompts_of(argparse.Namespace(prompt=[], prompts=args.prompts))
        self.prompts = [prompts[index % len(prompts)] for index in range(args.num)] if prompts else None
        self.length = min(pipe.language.longest, LENGTH) if args.length is None else args.length
        self.judge = load_judge()
        self.about = {
            "modality": "text",
            "length": self.length,
            "prompts": None if self.prompts is None else digest(self.prompts),
            "weights": fingerprint(pipe.model.module),
            "judge": None if self.judge is None else FILE,
        }

    def schedule(self, options: SamplingOptions) -> Schedule:
        return self.pipe.schedule(options, self.length)

    def works(self, options: SamplingOptions, seed: int) -> list[Work]:
        """Text i has its own seed and prompt."""
        args, pipe = self.args, self.pipe
        works = pipe.works(
            self.prompts,
            gen_length=self.length,
            num_texts=1 if self.prompts else args.num,
            schedule=options,
            eos_early_stop=False,
            seed=seed,
        )
        pipe.batch_size = 1  # where each is drawn alone, each is kept as soon as it is written
        if pipe.device.type not in ALONE:
            limit = args.cache_limit
            pipe.batch_size = choose_batch(
                pipe, works[0].schedule, args.batch, args.num, cache_limit=limit, decoded=False
            )
        return works

    def folder(self, path: Path, works: Sequence[Work]) -> RunFolder:
        return JudgedFolder(path, len(works), identity(self.pipe, works), self.pipe, self.judge)

    def figures(self, folder: RunFolder) -> dict[str, float]:
        assert isinstance(folder, JudgedFolder)
        return text_figures(judged_all(folder.read(), self.judge))

    def says(self, figures: Mapping[str, float]) -> str:
        return shown(figures)

    def seconds(self, works: Sequence[Work]) -> dict[str, float]:
        return seconds_of(draw_in_turn(self.pipe, {"": works}, FIRST_ROUNDS)[""])

    def point(self, schedule: str, seed: int, works: Sequence[Work], folder: RunFolder) -> Point:
        """The texts stay, in one file."""
        assert isinstance(folder, JudgedFolder)
        texts, how = judged_all(folder.read(), self.judge), works[0].schedule
        write_texts(texts_file(folder.path.parent, schedule, seed), texts)
        figures, seconds = text_figures(texts), self.seconds(works)
        counts = how.full, how.local
        return Point(schedule, seed, len(works), figures, seconds, how.warmup, counts, alike(how))

    def mended(self, points: Sequence[Point], out: Path) -> list[Point]:
        """Points that were measured without a judge are judged now, if there is one."""
        found = []
        for point in points:
            if self.judge is not None and "perplexity" not in point.figures:
                path = texts_file(out, point.schedule, point.seed)
                texts = judged_all(read_texts_of(path), self.judge, point.schedule)
                write_texts(path, texts)
                point = replace(point, figures=text_figures(texts))
            found.append(point)
        return found

    def untimed(self, points: Sequence[Point]) -> bool:
        return not all(point.runs for point in points)

    def retimed(self, points: Sequence[Point], jobs: Mapping[str, Sequence[Work]]) -> list[Point]:
        spent = draw_in_turn(self.pipe, jobs, ROUNDS)
        runs = {
            name: {"wall": [run.wall for run in several], "processor": [run.processor for run in several]}
            for name, several in spent.items()
        }
        seconds = {name: seconds_of(several) for name, several in spent.items()}
        return [replace(point, seconds=seconds[point.schedule], runs=runs[point.schedule]) for point in points]


def seconds_of(runs: Sequence[Spent]) -> dict[str, float]:
    """The medians of runs."""
    wall, processor = ([getattr(run, name) for run in runs] for name in ("wall", "processor"))
    return {"total": median(wall), "processor": median(processor)}


def texts_file(out: Path, schedule: str, seed: int) -> Path:
    """Where the texts of a finished point are."""
    return out / f"texts-{re.sub(r'[^A-Za-z0-9.+=-]+', '_', schedule)}-seed{seed}.jsonl"
