"""What limits reuse: FID where local evaluations recompute more rows than their target set.

    python benchmarks/choosing.py flowers-mage 16+16:temperature=0.8,choice_temperature=16 --before 0 256 --after 0 256 --device cuda --dtype bfloat16

`--before` are decoded rows that a local evaluation recomputes too, `--after` masked ones; every pair of the two is a
row. With 256 of both nothing is stale, and with `target=256` it may choose among all that is masked.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import recap
from recap.cli.options import DTYPES
from recap.core.schedule import Schedule
from recap.evaluation.evaluate import Reference, compare
from recap.evaluation.features import Features, load_inception, look
from recap.pipelines.inputs import proportional_labels
from recap.runs.draw import draw
from recap.runs.works import Done
from recap.view.progress import tqdm


def wider(schedule: Schedule, before: int, after: int) -> Schedule:
    """The same schedule, whose local evaluations recompute these rows too."""
    groups = (replace(group, before=before, after=after) if group.local else group for group in schedule.groups)
    return replace(schedule, groups=tuple(groups))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("schedule", nargs="+")
    options.add_argument("--before", type=int, nargs="+", default=[0])
    options.add_argument("--after", type=int, nargs="+", default=[0])
    options.add_argument("--num", type=int, default=4096)
    options.add_argument("--batch", type=int, default=512)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--device", default="cpu")
    options.add_argument("--dtype", choices=DTYPES, default="float32")
    options.add_argument("--inception", metavar="FILE")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    net = load_inception(args.inception).to(args.device)
    reference = Reference.load("flowers128", net)
    pipe = recap.load(args.model, device=args.device, torch_dtype=DTYPES[args.dtype])
    pipe.batch_size = args.batch
    counts = reference.statistics.classes
    labels = proportional_labels(args.num, counts) if pipe.model.classes and counts else None
    for text, before, after in product(args.schedule, args.before, args.after):
        works = pipe.works(labels, args.num, text, seed=args.seed)
        made = wider(works[0].schedule, before, after)
        results = draw(pipe, [replace(work, schedule=made) for work in works])
        seen = []
        for result in tqdm(results, total=args.num, desc=text, unit="image"):
            assert isinstance(result, Done)
            assert result.pixels is not None
            seen.append(look(net, result.pixels[None]))
        fid = compare(Features.join(seen), reference)["fid"]
        print(
            json.dumps({"schedule": text, "before": before, "after": after, "num": args.num, "fid": fid}), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
