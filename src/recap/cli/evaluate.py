"""Measure how good a model's images or texts are, or a folder or file of images or texts.

Images are looked at once and compared with a reference: FID always; KID, precision and recall where the reference
has images; the Inception Score where the network has logits (--inception with the official file). Texts get a
perplexity from the judge of the extra `judge`, unigram entropy, and shares of different n-grams, with standard
errors. A run that was stopped goes on from what is in OUT, and ends with the same figures. With
`torchrun --nproc-per-node G -m -- recap evaluate ...` several processes share the work.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from recap.bench.measure import machine
from recap.cli.measuring import add_measuring, figures_of, meter_of
from recap.cli.options import add_sampling, any_pipeline_of, check_device
from recap.core.options import SamplingOptions
from recap.evaluation.evaluate import Reference, features_of
from recap.evaluation.features import load_inception
from recap.evaluation.metrics import FeatureStatistics
from recap.evaluation.perplexity import FILE
from recap.evaluation.shards import FeatureFolder
from recap.evaluation.texts import (
    JudgedFolder,
    judged_all,
    load_judge,
    read_texts_of,
    shown,
    text_figures,
    write_texts,
)
from recap.pipelines import TextPipeline
from recap.runs.files import write_json
from recap.runs.ranks import Ranks
from recap.runs.record import identity
from recap.runs.sample import sample_all
from recap.view.say import say

FEATURES, TEXTS, RESULT = "features", "texts", "result.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", metavar="PATH", help="measure these images instead of a model's")
    texts = "measure these texts: a folder of .txt files, or a .txt or .jsonl with one a line; tokens are --model's"
    parser.add_argument("--texts", metavar="PATH", help=texts)
    add_measuring(parser, "evaluation")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument("--save-stats", metavar="FILE", help="keep the statistics of the images as an npz")
    add_sampling(parser)


def run(args: argparse.Namespace) -> int:
    out, ranks = Path(args.out), Ranks.join()
    args.device = ranks.device(args.device)
    if (args.images or args.texts) and ranks.world > 1:
        raise ValueError("--images and --texts are measured by one process; leave torchrun out")
    check_device(args.device)
    if args.images and args.texts:
        raise ValueError("--images and --texts were given; measure one of them at a time")
    if args.images:
        about, figures, num = of_images(args)
    elif args.texts:
        about, figures, num = of_texts(args)
    else:
        found = of_model(args, out, ranks)
        if found is None:
            return 0  # the first process says it all
        about, figures, num = found
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RESULT, {**about, "num": num, "figures": figures, "machine": machine(args.device)})
    texts = "entropy" in figures
    said = shown(figures) if texts else ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    name, noun = about.get("model") or args.images or args.texts, "texts" if texts else "images"
    say(f"{name}: {num} {noun}, {said or 'statistics only'} -> {out / RESULT}")
    return 0


Found = tuple[dict[str, Any], dict[str, float], int]  # what is known of them, their figures, and how many they are


def of_images(args: argparse.Namespace) -> Found:
    """Those of a folder or file."""
    net = load_inception(args.inception).to(args.device)
    reference = None if args.stats == "none" else Reference.load(args.stats, net)
    seen = features_of(args.images, net)
    if args.save_stats:
        FeatureStatistics.of(seen.features).save(args.save_stats)
    figures = {} if reference is None else figures_of(seen, reference)
    return {"images": str(args.images), "reference": args.stats}, figures, len(seen)


def of_texts(args: argparse.Namespace) -> Found:
    """Likewise; their tokens are words where no model is named that has others."""
    encode = None
    if args.model:
        pipe, _ = any_pipeline_of(args, "text")
        assert isinstance(pipe, TextPipeline)
        encode = pipe.need_tokenizer().encode
    texts = read_texts_of(args.texts, encode)
    judge = load_judge()
    figures = text_figures(judged_all(texts, judge))
    of = args.model or ("ids" if isinstance(texts[0].tokens[0], int) else "words")
    return {"texts": str(args.texts), "tokens": of, "judge": None if judge is None else FILE}, figures, len(texts)


def of_model(args: argparse.Namespace, out: Path, ranks: Ranks) -> Found | None:
    """What a model draws, by all processes; figures are for the first alone."""
    pipe, shown_as = any_pipeline_of(args)
    meter = meter_of(args, pipe, ranks)
    options = SamplingOptions.from_args(args)
    works = meter.works(options, args.seed)
    folder = meter.folder(out / (TEXTS if isinstance(pipe, TextPipeline) else FEATURES), works)
    name = str(works[0].schedule)
    if sample_all(pipe, works, folder, ranks, overwrite=args.overwrite, name=name) is None:
        return None
    about: dict[str, Any] = {"model": shown_as, **meter.about, "batch": args.batch, "processes": ranks.world}
    about |= {"sampling": pipe.options.override(options).json(), **identity(pipe, works)}
    if args.save_stats and isinstance(folder, FeatureFolder):
        FeatureStatistics.of(folder.read().features).save(args.save_stats)
    figures, seconds = meter.figures(folder), meter.seconds(works)
    if isinstance(folder, JudgedFolder):
        write_texts(out / f"{TEXTS}.jsonl", folder.read())
    return about | {"seconds_per_image": seconds["total"], "seconds": seconds}, figures, len(works)
