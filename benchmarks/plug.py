#!/usr/bin/env python3
"""Accelerate unedited official objects with random weights, and prove that nothing of them changes.

    RECAP_OTHERS=others python benchmarks/plug.py [mar] [mage] [nat] [llada] [illada] [dream] [--out plug.jsonl]

RECAP_OTHERS is a folder with the official repositories as sub-folders: mar (LTH14/mar), mage (LTH14/mage), nat
(LeapLabTHU/ImprovedNAT) and, where it is there, recap (the authors' examples/MAR+ReCAP). They need timm and the
like; sub-folders `shim` and `shim_fallback` with stand-ins for such packages are looked at first and last. What
llada and dream have to contain, and which transformers they need, benchmarks/text_parity.py says; their objects are
tiny.

For each of MAR-B, MAGE-B and AutoNAT-L: `recap.wrap` takes the object; the full evaluation is compared with the
official forward, the denoiser of MAR with the official one; `recap.verify` checks every law; a grouped run is drawn
through a `Pipeline`; and then state dict, attributes, hooks, modes and outputs are compared with those from before.
Prompts of language models are of unequal length, and what fills the shorter one up is compared too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import text_parity
from tests.models.text_weights import text

import recap
from recap.core.canvas import take
from recap.core.noise import Noise, image_generators
from recap.models.text import TextAdapter
from recap.pipelines import TextPipeline
from recap.verification.verifier import TOLERANCE, distance

ROOT = Path(os.environ.get("RECAP_OTHERS", "others")).resolve()
PACKAGES = ("models", "diffusion", "util", "taming", "libs", "models_mage")


def add_paths() -> None:
    """Let the stand-ins be found for what official code imports."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT / "shim"))
    sys.path.append(str(ROOT / "shim_fallback"))


def load(folder: str, module: str) -> Any:
    """Import `module` of one repository; all of them call their packages alike, so the last one is forgotten."""
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    base = ROOT / folder
    if not base.is_dir():
        raise SystemExit(f"{base} is not there; set RECAP_OTHERS to a folder with the official repositories")
    sys.path[:] = [p for p in sys.path if Path(p).parent != ROOT or Path(p).name.startswith("shim")]
    sys.path.insert(0, str(base))
    for name in PACKAGES:  # packages without __init__.py, so that no other of that name is found
        if (base / name).is_dir() and not (base / name / "__init__.py").exists():
            package = types.ModuleType(name)
            package.__path__ = [str(base / name)]
            sys.modules[name] = package
    importlib.invalidate_caches()
    return importlib.import_module(module)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    here = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.chdir(here)


def build_mar(folder: str = "mar") -> nn.Module:
    return load(folder, "models.mar").mar_base(diffloss_d=6, diffloss_w=1024)


def build_mage() -> nn.Module:
    import numpy as np

    vars(np).setdefault("float", float)  # their positions were written for an older numpy
    module = load("mage", "models_mage")
    with inside(ROOT / "mage"):  # it reads config/vqgan.yaml
        return module.mage_vit_base_patch16(vqgan_ckpt_path=None)


def build_nat() -> nn.Module:
    import timm

    version, timm.__version__ = timm.__version__, "0.3.2"  # what their code asks for
    try:
        module = load("nat", "libs.nat_model")
    finally:
        timm.__version__ = version
    with contextlib.redirect_stdout(io.StringIO()):
        return module.UViT(img_size=16, embed_dim=768, depth=24, num_heads=8, num_classes=1001, codebook_size=1024)


TEXT = ("llada", "illada", "dream")
BUILDERS: dict[str, Callable[[], Any]] = {
    "mar": build_mar,
    "mage": build_mage,
    "nat": build_nat,
    "recap": lambda: build_mar("recap"),
    "llada": lambda: text_parity.llada("llada"),
    "illada": lambda: text_parity.llada("illada"),
    "dream": lambda: text_parity.dream("dream"),
}
SWITCHES = ("flash", "mem_efficient", "math", "cudnn")  # of torch's attention, which LLaDA's constructor turns
LENGTH, SHORTER = 48, 31  # tokens of texts


@torch.no_grad()
def unzero(net: nn.Module) -> None:
    """Random numbers where the official initialisation leaves zeros or ones, so that no part is idle."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in net.named_parameters():
        if name.startswith("vqgan."):
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if not parameter.any() or parameter.ndim == 1:
            parameter.add_(0.02 * noise)


def state(net: nn.Module) -> dict[str, Any]:
    """All that can be seen of an object: tensors with their addresses, attributes, hooks, modes."""
    tensors = {name: (t.clone(), t.data_ptr(), t.dtype) for name, t in net.state_dict(keep_vars=True).items()}
    modules = {
        name: (
            id(module),
            module.training,
            sorted(vars(module)),
            [len(hooks) for key, hooks in vars(module).items() if key.endswith("hooks")],
            id(module.forward.__func__),
        )
        for name, module in net.named_modules()
    }
    switches = [getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in SWITCHES]
    return {"tensors": tensors, "modules": modules, "about": (repr(getattr(net, "config", None)), switches)}


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    if any(before[part] != after[part] for part in ("modules", "about")):
        return False
    if before["tensors"].keys() != after["tensors"].keys():
        return False
    pairs = ((before["tensors"][name], after["tensors"][name]) for name in before["tensors"])
    return all(torch.equal(a[0], b[0]) and a[1:] == b[1:] for a, b in pairs)


def noise(batch: int, seed: int = 0) -> Noise:
    return Noise(image_generators(seed, range(batch)), torch.device("cpu"))


@torch.inference_mode()
def official_error(adapter: recap.Adapter, labels: Tensor | None) -> tuple[float, Tensor]:
    """Full evaluation against the official forward, half of the tokens known; and what the latter says."""
    branches = 2 if adapter.guidable else 1
    canvas = adapter.start(labels, noise(2).permutation(adapter.num_tokens), branches)
    half = adapter.num_tokens // 2
    if adapter.classes and canvas.tokens.ndim == 3:
        canvas.tokens[:, :half] = noise(2, 1).normal(half, canvas.tokens.shape[2])
    else:
        canvas.tokens[:, :half] = (noise(2, 1).uniform(half) * adapter.config.codes).long()
    canvas.decoded = canvas.known = half
    ours = adapter.prediction(adapter.full(canvas, None, slice(0, adapter.num_tokens)))
    theirs = adapter.plain(canvas, labels)
    theirs = take(theirs, canvas.order)
    if isinstance(adapter, TextAdapter) and canvas.condition is not None:  # what fills up is no matter
        belong = canvas.condition.repeat(branches, 1)
        ours, theirs = ours[belong], theirs[belong]
    return distance(ours, theirs), theirs


@torch.inference_mode()
def denoiser_error(net: Any, adapter: recap.Adapter) -> float:
    """The diffusion head's words against the official denoiser's, at several timesteps."""
    head: Any = adapter.head
    features, x = noise(1).normal(5, adapter.config.width), noise(1, 1).normal(5, head.channels)
    worst = 0.0
    for timestep in (0, 500, 999):
        theirs = net.diffloss.net(x[0], torch.full((5,), timestep), features[0])
        worst = max(worst, distance(head.predict_at(x, features, timestep)[0], theirs))
    return worst


def check(item: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net: Any = BUILDERS[item]()
    net.eval()
    if item not in TEXT:  # whose weights are ours
        unzero(net)
    before = state(net)
    start = time.perf_counter()
    adapter = recap.wrap(net)
    took = time.perf_counter() - start
    if isinstance(adapter, TextAdapter):
        adapter = adapter.at(LENGTH)
    labels = torch.tensor([207, 360]) if adapter.classes else None
    error, outputs = official_error(adapter, labels)
    row: dict[str, Any] = {
        "item": item,
        "class": f"{type(net).__module__}.{type(net).__name__}",
        "adapter": type(adapter).__name__,
        "sizes": str(adapter.config),
        "wrap_seconds": round(took, 4),
        "full_against_official": error,
    }
    if isinstance(adapter, TextAdapter):
        return row | checked_text(net, adapter, before)
    if hasattr(net, "diffloss"):
        row["denoiser_against_official"] = denoiser_error(net, adapter)
    report = recap.verify(adapter)
    print(report, flush=True)
    row["checks"] = {check.name: check.error for check in report}
    pipe = recap.Pipeline(adapter)
    pipe.progress = False
    drawn = pipe(
        None if labels is None else labels.tolist(),
        num_images=None if adapter.classes else 2,
        schedule=recap.cosine(adapter.num_tokens, full=3, local=3, head_steps=(5, 5)),
        seed=0,
        output_type="latent",
    )
    row["drawn"] = list(drawn.tokens.shape)
    del pipe, drawn
    error, again = official_error(adapter, labels)
    del adapter
    row["unchanged"] = same(before, state(net)) and torch.equal(outputs, again)
    row["ok"] = (
        report.ok
        and row["unchanged"]
        and row["full_against_official"] <= TOLERANCE
        and row.get("denoiser_against_official", 0.0) <= TOLERANCE
    )
    return row


def checked_text(net: nn.Module, adapter: TextAdapter, before: dict[str, Any]) -> dict[str, Any]:
    """What else there is to see of a language model: texts of unequal length, alone and together."""
    lengths = torch.tensor([LENGTH, SHORTER])
    plain, outputs = official_error(adapter, None)
    padded, filled = official_error(adapter, lengths)
    report = recap.verify(adapter)
    print(report, flush=True)
    pipe = TextPipeline(adapter)
    pipe.progress = False
    prompts = [row[:length].tolist() for row, length in zip(text("plug", 2, 16), (16, 9), strict=True)]
    schedules = ("8+24:preset=fast-dllm-dual", "8+24", "16:preset=llada")
    for schedule in schedules:
        drawn = pipe(input_ids=prompts, gen_length=32, schedule=schedule, seed=0, output_type="ids", guidance=1.5)
        assert [len(ids) for ids in drawn.sequences] == [32, 32]
    del pipe
    again = (official_error(adapter, None)[1], official_error(adapter, lengths)[1])
    unchanged = same(before, state(net)) and all(map(torch.equal, (outputs, filled), again))
    return {
        "unequal_lengths_against_official": padded,
        "checks": {check.name: check.error for check in report},
        "drawn": list(schedules),
        "unchanged": unchanged,
        "ok": report.ok and unchanged and max(plain, padded) <= TOLERANCE,
    }


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description="wrap unedited official objects with random weights")
    options.add_argument("items", nargs="*", choices=[*BUILDERS, []], help="which (default: mar mage nat)")
    options.add_argument("--out", type=Path, help="also append JSON lines here")
    return options


def main() -> int:
    args = parser().parse_args()
    add_paths()
    good = True
    for item in args.items or ("mar", "mage", "nat"):
        row = check(item)
        print(json.dumps(row, indent=1), flush=True)
        if args.out is not None:
            with args.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        good &= row["ok"]
    print("all as it should be" if good else "something is wrong")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
