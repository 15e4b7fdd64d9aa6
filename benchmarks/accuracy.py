"""How far engines and precisions are from float32 and plain torch, for the models that come with the package.

For each model: the error of features in full and local evaluations of a half decoded canvas (root of the mean square,
relative), the share of tokens that differ after one draw at equal noise and equal features, and what a whole run ends
with. Ids part for good at the first one that differs, so a whole run says how soon that is, not how bad it is.

    python benchmarks/accuracy.py --device cuda --engines eager fused graphs --json docs/performance/accuracy.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import recap
from recap.bench.measure import machine
from recap.core.canvas import Canvas, Draw
from recap.core.noise import Noise, Purpose, image_generators
from recap.pipelines.pipeline import Pipeline
from recap.runs.draw import begin
from recap.runs.files import write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def relative(ours: Tensor, exact: Tensor) -> float:
    difference = ours.double() - exact.double()
    return float(difference.square().mean().sqrt() / exact.double().square().mean().sqrt())


class Scene:
    """A half decoded batch: `batch` images of a finished run, whose first half is known."""

    def __init__(self, pipe: Pipeline, batch: int) -> None:
        classes = pipe.model.classes
        picked = (torch.arange(batch) * 7 % classes).tolist() if classes else None
        canvas: Canvas
        *_, canvas = begin(pipe, pipe.works(picked, batch, "8", seed=0), batch)
        self.batch, self.picked = batch, picked
        self.labels = None if picked is None else torch.tensor(picked, device=pipe.device)
        self.tokens, self.order = canvas.tokens.clone(), canvas.order.clone()

    def features(self, pipe: Pipeline) -> tuple[Tensor, Tensor, Tensor]:
        """Of a full evaluation, of a local one after some tokens came, and one draw from the first."""
        model, half = pipe.model, pipe.model.num_tokens // 2
        branches = 2 if model.guidable else 1
        schedule = pipe.schedule("32+32")
        canvas = model.start(self.labels, self.order, branches)
        cache = model.new_cache(canvas, schedule)
        canvas.commit(Draw(self.tokens[:, :half]))
        wanted = slice(half, half + 8)
        full = model.full(canvas, cache, wanted).float().clone()
        noise = Noise(image_generators(1, range(self.batch)), pipe.device).at(
            1, Purpose.VALUES, self.order[:, wanted]
        )
        step = schedule.steps[-1]
        draw = model.head.draw(full.to(model.dtype), step, branches, noise).values.clone()
        canvas.commit(Draw(self.tokens[:, half : half + 4]))
        local = model.local(canvas, cache, wanted, slice(half + 4, half + 8)).float().clone()
        return full, local, draw


def measure(name: str, device: str, engine: str, dtype: str, batch: int) -> dict[str, Any]:
    """One row: `engine` and `dtype` against torch in float32."""
    exact = Pipeline.from_pretrained(name, device=device)
    ours = Pipeline.from_pretrained(name, device=device, torch_dtype=DTYPES[dtype]).compile(engine)
    exact.progress = ours.progress = False
    with torch.inference_mode():
        scene = Scene(exact, batch)
        full, local, draw = scene.features(exact)
        for _ in range(3):  # the third time everything comes from graphs
            got_full, got_local, got_draw = scene.features(ours)
    number = batch if scene.picked is None else None
    ends = [pipe(scene.picked, num_images=number, seed=0, output_type="latent").tokens for pipe in (exact, ours)]
    discrete = not draw.is_floating_point()
    return {
        "model": name,
        "engine": engine,
        "dtype": dtype,
        "full": relative(got_full, full),
        "local": relative(got_local, local),
        "draw": float((got_draw != draw).double().mean()) if discrete else relative(got_draw, draw),
        "run": float((ends[0] != ends[1]).double().mean()) if discrete else relative(ends[1], ends[0]),
        "unit_of_draw_and_run": "share of different ids" if discrete else "relative error",
    }


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", nargs="+", default=["flowers-maskgit", "flowers-mage", "flowers-mar"])
    options.add_argument("--device", default="cpu")
    options.add_argument("--engines", nargs="+", default=["eager"])
    options.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], choices=DTYPES)
    options.add_argument("--batch", type=int, default=8)
    options.add_argument("--json", metavar="FILE")
    return options


def main() -> None:
    args = parser().parse_args()
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    print(f"{'model':<16} {'engine':<7} {'dtype':<9} {'full':>9} {'local':>9} {'draw':>9} {'run':>9}")
    for name in args.models:
        for engine in args.engines:
            for dtype in args.dtypes:
                row = measure(name, args.device, engine, dtype, args.batch)
                rows.append(row)
                figures = " ".join(f"{row[key]:9.2e}" for key in ("full", "local", "draw", "run"))
                print(f"{name:<16} {engine:<7} {dtype:<9} {figures}", flush=True)
                result = {"rows": rows, "machine": machine(args.device), "recap": recap.__version__}
                if args.json:  # what is measured is kept, whatever comes after
                    write_json(Path(args.json), result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
