"""Published points of quality and time, for the page of `recap studio` to plot.

    python benchmarks/results.py docs/results

writes `results.json` of the page from what `recap sweep` and `recap report` left in a folder: MODEL.json
with every measured point, and how it was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap import SamplingOptions, weights
from recap.checkpoints.folder import config_from, read_config, read_model_config
from recap.evaluation.report import conditions
from recap.evaluation.sweep import Sweep, SweepRow

RESULTS = Path(__file__).parents[1] / "src" / "recap" / "server" / "page" / "results.json"


def collected(folder: Path) -> dict[str, Any]:
    """The content of `results.json`, from a folder of results."""
    models = []
    for name in weights.embedded():
        path = folder / f"{name}.json"
        if path.is_file():
            sweep = Sweep.read(path)
            rows, caption = sorted(sweep.rows, key=lambda row: row.seconds), conditions(sweep.about)
            models.append({"name": name, "caption": caption, "points": [point(row, *drawn(name)) for row in rows]})
    return {"models": models}


def drawn(name: str) -> tuple[int, SamplingOptions]:
    """The tokens of a model that comes with the package, and how it is sampled."""
    folder = weights.HOME / name
    config = read_config(folder)
    options = read_model_config(folder, config).options
    assert options is not None
    return config_from(config, folder).num_tokens, options


def point(row: SweepRow, tokens: int, own: SamplingOptions) -> dict[str, Any]:
    options = SamplingOptions.from_text(row.schedule)
    return {
        "schedule": row.schedule,
        "full": options.full,
        "local": options.local or 0,
        "chain": options.chain or 1,
        "reused": row.reused,
        "seconds": float(f"{row.seconds:.4g}"),
        "fid": round(row.figures["fid"], 2),
        "front": row.front,
        "loadable": loadable(options, tokens, own),
    }


def loadable(options: SamplingOptions, tokens: int, own: SamplingOptions) -> bool:
    """Whether full, local and chain, which the page has sliders for, say all of a schedule."""
    simple = SamplingOptions(full=options.full, local=options.local, chain=options.chain)
    return own.override(simple).schedule(tokens) == own.override(options).schedule(tokens)


def written(content: dict[str, Any]) -> str:
    """JSON with a point a line, so that changes can be read."""
    text = json.dumps(content, indent=1)
    for model in content["models"]:
        for each in model["points"]:
            text = text.replace(json.dumps(each, indent=1).replace("\n", "\n    "), json.dumps(each))
    return text + "\n"


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python benchmarks/results.py FOLDER", file=sys.stderr)
        return 2
    content = collected(Path(argv[0]))
    RESULTS.write_text(written(content))
    print(f"{len(content['models'])} models, {sum(len(model['points']) for model in content['models'])} points")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
