"""Published points of quality and time, for the page to plot.

    python -m recap.studio.results docs/results

writes `results.json` beside this file from what `recap sweep` and `recap report` left in a folder: MODEL.jsonl with
every measured point, and MODEL.json with how it was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap import weights
from recap.checkpoints.about import read_about
from recap.checkpoints.folder import config_from, read_config
from recap.core.presets import Sampling
from recap.evaluation.report import conditions
from recap.evaluation.settings import Setting
from recap.evaluation.sweep import Row, read_points, rows_of
from recap.files import written_whole
from recap.limits import read_json

RESULTS = Path(__file__).parent / "results.json"


def collected(folder: Path) -> dict[str, Any]:
    """The content of `results.json`, from a folder of results."""
    models = []
    for name in weights.embedded():
        points = read_points(folder / f"{name}.jsonl")
        if points:
            about, (tokens, own) = read_json(folder / f"{name}.json"), drawn(name)
            rows = sorted(rows_of(points), key=lambda row: row.seconds)
            models.append(
                {
                    "name": name,
                    "caption": conditions(about),
                    "points": [point(row, own, tokens) for row in rows],
                }
            )
    return {"models": models}


def drawn(name: str) -> tuple[int, Sampling]:
    """The tokens of a model that comes with the package, and how it is sampled."""
    folder = weights.HOME / name
    config = read_config(folder)
    sampling = read_about(folder, config).sampling
    assert sampling is not None
    return config_from(config, folder).num_tokens, sampling


def point(row: Row, own: Sampling, tokens: int) -> dict[str, Any]:
    setting = row.parsed
    return {
        "setting": row.setting,
        "full": setting.full,
        "local": setting.local,
        "chain": setting.chain,
        "reused": row.reused,
        "seconds": float(f"{row.seconds:.4g}"),
        "fid": round(row.figures["fid"], 2),
        "front": row.front,
        "loadable": loadable(setting, own, tokens),
    }


def loadable(setting: Setting, own: Sampling, tokens: int) -> bool:
    """Whether full, local and chain say all of a setting, for a model that is otherwise sampled in its own way."""
    simple = Setting(setting.full, setting.local, chain=setting.chain)
    return simple.schedule(own, tokens) == setting.schedule(own, tokens)


def written(content: dict[str, Any]) -> str:
    """JSON with a point a line, so that changes can be read."""
    text = json.dumps(content, indent=1)
    for model in content["models"]:
        for each in model["points"]:
            text = text.replace(json.dumps(each, indent=1).replace("\n", "\n    "), json.dumps(each))
    return text + "\n"


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m recap.studio.results FOLDER", file=sys.stderr)
        return 2
    content = collected(Path(argv[0]))
    with written_whole(RESULTS, "w") as file:
        file.write(written(content))
    points = sum(len(model["points"]) for model in content["models"])
    print(f"{len(content['models'])} models, {points} points -> {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
