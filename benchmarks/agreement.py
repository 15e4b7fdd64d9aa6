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
from recap.tuning.agreement import lost

PATH = Path(__file__).parents[1] / "docs" / "results" / "agreement.json"


def ranks(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).argsort().argsort().double()


def spearman(points: list[dict[str, Any]]) -> float:
    fid, loss = (ranks([point[key] for point in points]) for key in ("fid", "loss"))
    return float(torch.corrcoef(torch.stack([fid, loss]))[0, 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["flowers-mage", "flowers-maskgit"])
    parser.add_argument("--num", type=int, default=16, help="images of each schedule")
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
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
            losses = lost(pipe, works, args.batch)  # (W, S)
            total = losses.sum(dim=1)
            local = [bool(index) for group in works[0].schedule for index in range(len(group.steps))]
            point["num"] = args.num
            point["loss"] = round(float(total.mean()), 3)
            point["error"] = round(float(total.std() / len(total) ** 0.5), 3)
            point["local"] = round(float(losses[:, torch.tensor(local)].sum(dim=1).mean()), 3)
            print(name, point, flush=True)
            write_json(PATH, content)
        plain = [point for point in entry["points"] if "+" not in point["schedule"]]
        reused = [point for point in entry["points"] if "+" in point["schedule"]]
        kinds = {"all": entry["points"], "plain": plain, "reused": reused}
        entry["spearman"] = {kind: round(spearman(points), 3) for kind, points in kinds.items()}
        print(f"{name}: Spearman {entry['spearman']}", flush=True)
        write_json(PATH, content)


if __name__ == "__main__":
    main()
