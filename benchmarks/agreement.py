"""Does the measure of `recap tune` order schedules as FID does? Spearman's rank correlation over points with both.

FID (4,096 images, one NVIDIA H200, one standard deviation about 0.6) stands in docs/results/agreement.json beside
each schedule; the losses are measured here, on a CPU, and written to the same file.

    python benchmarks/agreement.py --num 16 --models flowers-mage flowers-maskgit
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import recap
from recap.pipelines.inputs import planned_labels
from recap.runs.files import write_json
from recap.tuning.agreement import agreement
from recap.tuning.search import WARMTH

PATH = Path(__file__).parents[1] / "docs" / "results" / "agreement.json"


def ranks(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).argsort().argsort().double()


def spearman(points: list[dict[str, Any]], key: str) -> float:
    pair = [ranks([point[name] for point in points]) for name in ("fid", key)]
    return round(float(torch.corrcoef(torch.stack(pair))[0, 1]), 3)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--models", nargs="+", default=["flowers-mage", "flowers-maskgit"])
    made.add_argument("--num", type=int, default=16, help="images of each schedule")
    made.add_argument("--batch", type=int, default=16)
    return made


def main() -> None:
    args = parser().parse_args()
    for name in args.models:
        pipe = recap.load(name)
        content = json.loads(PATH.read_text())
        entry = content[name]
        pipe.options = pipe.options_for(entry["options"])
        labels = planned_labels(None, args.num, pipe.class_names, pipe.model.classes)
        for point in entry["points"]:
            if point.get("num") == args.num:  # of a run that was stopped
                continue
            works = pipe.works(labels, args.num, point["schedule"], seed=0)
            found = agreement(pipe, works, args.batch)
            local = [bool(index) for group in works[0].schedule for index in range(len(group.steps))]
            point["num"] = args.num
            point["loss"] = round(float(found.loss.sum(dim=1).mean()), 2)
            point["local"] = round(float(found.loss[:, torch.tensor(local)].sum(dim=1).mean()), 2)
            point["choice"] = round(float(found.choice.sum(dim=1).mean()), 2)
            print(name, point, flush=True)
            write_json(PATH, content)
        plain = [point for point in entry["points"] if "+" not in point["schedule"]]
        entry["usual"] = max(point["choice"] for point in plain)
        for point in entry["points"]:
            point["error"] = round(point["loss"] + WARMTH * max(0.0, entry["usual"] - point["choice"]), 2)
        reused = [point for point in entry["points"] if "+" in point["schedule"]]
        kinds = {"all": entry["points"], "plain": plain, "reused": reused}
        entry["spearman"] = {
            kind: {key: spearman(points, key) for key in ("error", "loss")} for kind, points in kinds.items()
        }
        print(f"{name}: Spearman {entry['spearman']}", flush=True)
        write_json(PATH, content)


if __name__ == "__main__":
    main()
