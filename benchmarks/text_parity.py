#!/usr/bin/env python3
"""What the official code of LLaDA, Dream and Fast-dLLM makes of tiny networks, as figures for tests.

    RECAP_OTHERS=others python benchmarks/text_parity.py --out tests/models/text_golden.json

RECAP_OTHERS is a folder with
  llada      modeling_llada.py and configuration_llada.py as on the Hub since October 2025 (the first also at
             zhuconv/DLMBench@85c8d2bc, models/llada; the second at Gen-Verse/MMaDA@3cdb8709, models), and
             generate.py of ML-GSAI/LLaDA@b7e6c356
  dream      modeling_dream.py, generation_utils.py and configuration_dream.py as on the Hub (the first also at
             fscdc/dVoting@16beb0d3, models/modeling_dream_origin.py, where one import has to be `.generation_utils`;
             the second at ZHZisZZ/dllm@7b834e4e, dllm_trainer/pipelines/dream/models; the third at
             horseee/dKV-Cache@49a76fcc, models)
  Fast-dLLM  NVlabs/Fast-dLLM@24cc59e7
They need einops and a transformers from 4.46 to 4.57; the figures in the repository are of 4.57.6 and torch 2.13.0.

Networks are those of `tests/models/text_weights.py`, in float32, on one thread of a CPU, and everything is at
temperature 0. Of a run are written the prompt, what came out, how many rows each evaluation computed, and by which of
them, from 0 on, each position was filled (-1: by none). A prompt is the first, by number, with which
  - nothing changes when all logits are moved by chance by up to `moved`, which is far more than rounding does;
  - other settings (`unlike`) end differently, so that a test by the case can fail;
  - enough different tokens come out, and what the case is about happens (`special`).
The mask is never drawn.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.models.text_weights import CONFIGS, END, MASK, tensors, text

ROOT = Path(os.environ.get("RECAP_OTHERS", "others")).resolve()
LENGTH, SHORT = 7, 4  # of prompts, and of the padded one
MOVED, TRIALS = 1e-3, 32
PROMPTS = 400  # tried before a case is given up
Settings = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """A run: what came out, rows of each evaluation, and the evaluation that filled each position (-1: none)."""

    output: list[list[int]]
    rows: list[int]
    filled: list[list[int]]

    def committed(self) -> list[int]:
        """How many tokens of the first text each evaluation filled."""
        return [self.filled[0].count(number) for number in range(len(self.rows))]

    def varied(self) -> bool:
        """Whether a third of what was filled are different tokens, in every text."""
        for output, filled in zip(self.output, self.filled, strict=True):
            drawn = [token for token, number in zip(output, filled, strict=True) if number >= 0]
            if 3 * len(set(drawn)) < len(drawn):
                return False
        return True


@dataclass(frozen=True)
class Case:
    """A run by its settings; `unlike` are changes that must change its result."""

    name: str
    code: str  # of CODES
    settings: Settings
    network: str = "llada"
    batch: int = 1
    padded: bool = False  # the last prompt is shorter, and padded on the left
    masked: tuple[int, ...] = ()  # positions of the prompt that are masks
    unlike: tuple[Settings, ...] = ()
    special: Callable[[Trace], bool] = field(default=lambda trace: True)


class Watched:
    """A network that is called as it is, with a record, and on demand with noise on its logits."""

    def __init__(self, network: Any) -> None:
        self.network, self.forward = network, network.forward
        network.forward = self.answer
        self.start(0.0, 0)

    def start(self, moved: float, trial: int) -> None:
        self.moved, self.random = moved, torch.Generator().manual_seed(trial)
        self.canvas = torch.empty(0)
        self.canvases: list[Tensor] = []
        self.rows: list[int] = []

    def answer(self, ids: Tensor, *others: Any, **named: Any) -> Any:
        self.rows.append(ids.shape[1])
        place = named.get("replace_position")
        if named.get("past_key_values") is None:
            self.canvas = ids.clone()
        elif place is None:
            self.canvas[:, -ids.shape[1] :] = ids
        else:
            self.canvas[place] = ids.flatten()
        self.canvases.append(self.canvas.clone())
        answer = self.forward(ids, *others, **named)
        if (answer.logits.argmax(-1) == MASK).any():
            raise SystemExit("a mask was drawn; the mask's row of the head has to be quieter")
        noise = 2 * torch.rand(answer.logits.shape, generator=self.random) - 1
        answer.logits = answer.logits + self.moved * noise
        return answer

    def trace(self, output: Tensor) -> Trace:
        batch = len(output)
        states = torch.stack([canvas[:batch] for canvas in self.canvases] + [output])  # (evaluations + 1, B, N)
        number = (states == MASK).sum(0) - 1
        number[states[-1] == MASK] = -1
        return Trace(output.tolist(), self.rows, number.tolist())


def package(name: str, *folders: str) -> str:
    """A package of the files in a folder, whatever it is called there."""
    base = ROOT.joinpath(*folders)
    if not base.is_dir():
        raise SystemExit(f"{base} is not there; see the head of this file for what RECAP_OTHERS has to contain")
    module = types.ModuleType(name)
    module.__path__ = [str(base)]
    sys.modules[name] = module
    return name


def build(modeling: str, configuration: str, names: tuple[str, str], kind: str) -> Any:
    """A network of a module, with our weights; every key of them is one of its own, and the other way round."""
    config = getattr(importlib.import_module(configuration), names[1])(**CONFIGS[kind])
    network = getattr(importlib.import_module(modeling), names[0])(config)
    network.load_state_dict(tensors(kind))
    return network.eval()


def llada(kind: str) -> Any:
    name = package("llada", "llada")
    return build(f"{name}.modeling_llada", f"{name}.configuration_llada", ("LLaDAModelLM", "LLaDAConfig"), kind)


def dream(kind: str) -> Any:
    name = package("dream", "dream")
    return build(f"{name}.modeling_dream", f"{name}.configuration_dream", ("DreamModel", "DreamConfig"), kind)


def fast_llada(kind: str) -> Any:
    name = package("model", "Fast-dLLM", "llada", "model")  # as their generate.py calls it
    return build(f"{name}.modeling_llada", f"{name}.configuration_llada", ("LLaDAModelLM", "LLaDAConfig"), kind)


def fast_dream(kind: str) -> Any:
    name = package("fast_dream", "Fast-dLLM", "dream", "model")
    network = build(f"{name}.modeling_dream", f"{name}.configuration_dream", ("DreamModel", "DreamConfig"), kind)
    mixin = importlib.import_module(f"{name}.generation_utils_block").DreamGenerationMixin
    for method in "diffusion_generate", "_sample":  # as their eval.py does
        setattr(network, method, types.MethodType(getattr(mixin, method), network))
    return network


def llada_text(network: Any, prompt: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    generate = importlib.import_module("llada.generate").generate
    return generate(network, prompt, attention_mask=mask, mask_id=MASK, **settings)


def fast_llada_text(network: Any, prompt: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    package("fast_llada", "Fast-dLLM", "llada")
    others = dict(settings)
    mode = {"plain": "", "prefix": "_with_prefix_cache", "dual": "_with_dual_cache"}[others.pop("mode")]
    generate = getattr(importlib.import_module("fast_llada.generate"), f"generate{mode}")
    output, evaluations = generate(network, prompt, mask_id=MASK, **others)
    if evaluations != len(network.forward.__self__.rows):
        raise SystemExit(f"{evaluations} evaluations by their count, {len(network.forward.__self__.rows)} by ours")
    return output


def dream_text(network: Any, prompt: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    explicit = {"temperature": 0.0, "top_p": None, "top_k": None} | settings
    return network.diffusion_generate(prompt, attention_mask=mask, **explicit)


CODES = {
    "LLaDA": (llada, llada_text),
    "Dream": (dream, dream_text),
    "Fast-dLLM for LLaDA": (fast_llada, fast_llada_text),
    "Fast-dLLM for Dream": (fast_dream, dream_text),
}


def llada_cases() -> Iterator[Case]:
    def case(name: str, steps: int, block: int, unlike: Settings | None = None, **others: Any) -> Case:
        settings = {"steps": steps, "gen_length": 16, "block_length": block} | others.pop("settings", {})
        others = {"batch": 2, "unlike": (unlike,) if unlike else ()} | others
        return Case(name, "LLaDA", settings, **others)

    whole = {"block_length": 16}
    yield case("one block", 16, 16, {"steps": 8})
    yield case("several blocks", 16, 4, whole)
    yield case("fewer steps", 8, 16, {"block_length": 8})
    yield case("fewer steps in blocks", 8, 8, whole)
    yield case("uneven counts", 6, 8, {"steps": 8})
    yield case("guidance", 8, 8, {"cfg_scale": 0.0}, settings={"cfg_scale": 1.5})
    yield case("padding", 8, 8, {"attention_mask": None}, padded=True)
    yield case("guidance with padding", 16, 8, {"cfg_scale": 0.0}, settings={"cfg_scale": 1.5}, padded=True)
    yield case("a mask in the prompt", 16, 16, batch=1, masked=(2,), special=one_mask_left)
    yield case("fewer keys and tied", 8, 8, whole, network="illada")


def one_mask_left(trace: Trace) -> bool:
    """The mask of the prompt was filled, and one of the others never was."""
    return trace.output[0].count(MASK) == 1 and trace.output[0][2] != MASK


def several(trace: Trace) -> bool:
    """Sometimes one token passed, at least three times several."""
    counts = trace.committed()
    return 1 in counts and sum(count > 1 for count in counts) >= 3


def fast_llada_cases() -> Iterator[Case]:
    def case(name: str, mode: str, unlike: tuple[Settings, ...], **others: Any) -> Case:
        settings = {"mode": mode, "steps": 24, "gen_length": 24, "block_length": 8} | others.pop("settings", {})
        return Case(f"{mode}, {name}", "Fast-dLLM for LLaDA", settings, unlike=unlike, **others)

    plain, prefix, dual = {"mode": "plain"}, {"mode": "prefix"}, {"mode": "dual"}
    for mode, unlike in ("plain", (prefix, dual)), ("prefix", (plain, dual)), ("dual", (plain, prefix)):
        yield case("one a step", mode, unlike)
        yield case("two a step", mode, unlike, settings={"steps": 12})
        yield case("uneven counts", mode, unlike, settings={"steps": 9})
        for threshold in 0.9, 0.6:
            yield case(f"threshold {threshold}", mode, unlike, settings={"threshold": threshold}, special=several)
        # the full evaluation fills a block: a local one follows for nothing
        yield case("all pass", mode, ({"threshold": 0.9},), settings={"threshold": 0.001})
    yield case("fewer keys and tied", "dual", (prefix,), settings={"steps": 12}, network="illada")


def dream_cases() -> Iterator[Case]:
    def case(name: str, alg: str, steps: int, *unlike: Settings, **others: Any) -> Case:
        settings = {"max_new_tokens": 16, "alg": alg, "steps": steps, "eps": 1e-3} | others.pop("settings", {})
        others = dict[str, Any](network="dream", batch=2, unlike=unlike) | others
        return Case(name, "Dream", settings, **others)

    rivals = {"maskgit_plus": "topk_margin", "topk_margin": "entropy", "entropy": "maskgit_plus"}
    for alg, rival in rivals.items():
        for steps in 16, 8, 6:
            yield case(f"{alg} in {steps} steps", alg, steps, {"alg": rival})
    yield case("another eps", "entropy", 8, {"eps": 1e-3}, settings={"eps": 0.1})
    yield case("padding", "entropy", 8, {"attention_mask": None}, padded=True)
    yield case("padding, one a step", "maskgit_plus", 16, {"attention_mask": None}, padded=True)
    for alg in "entropy", "topk_margin":
        yield case(f"{alg} of the top 8", alg, 8, {"top_k": None}, settings={"top_k": 8})
    yield case("maskgit_plus of the top 0.8", "maskgit_plus", 8, {"top_p": None}, settings={"top_p": 0.8})
    yield case("masks in the prompt", "entropy", 9, batch=1, masked=(0, 3))


def fast_dream_cases() -> Iterator[Case]:
    def case(name: str, mode: str, *unlike: Settings, **others: Any) -> Case:
        settings = {"max_new_tokens": 24, "block_length": 8, "steps": 24, "alg": "entropy", "eps": 1e-3}
        settings |= {"dual_cache": mode == "dual"} | others.pop("settings", {})
        unlike = unlike or ({"dual_cache": mode != "dual"},)
        return Case(f"{mode}, {name}", "Fast-dLLM for Dream", settings, network="dream", unlike=unlike, **others)

    for mode in "prefix", "dual":
        yield case("one a step", mode)
        yield case("two a step", mode, settings={"steps": 12})
        yield case("uneven counts", mode, settings={"steps": 9})
        for threshold in 0.9, 0.6:
            sure = {"alg": "confidence_threshold", "threshold": threshold}
            yield case(f"threshold {threshold}", mode, settings=sure, special=several)
        yield case("one step a block", mode, {"steps": 6}, settings={"steps": 3})  # all but three stay masks
    yield case("a batch", "prefix", {"steps": 24}, settings={"steps": 12}, batch=2)


class Runner:
    """Runs cases on networks that are built once."""

    def __init__(self) -> None:
        self.networks: dict[tuple[str, str], Watched] = {}

    def run(self, case: Case, prompt: Tensor, mask: Tensor | None, moved: float = 0.0, trial: int = 0) -> Trace:
        make, write = CODES[case.code]
        key = case.code, case.network
        if key not in self.networks:
            self.networks[key] = Watched(make(case.network))
        watched = self.networks[key]
        watched.start(moved, trial)
        settings = dict(case.settings)
        mask = settings.pop("attention_mask", mask)
        with contextlib.redirect_stdout(io.StringIO()):
            output = write(watched.network, prompt.clone(), mask, settings)
        return watched.trace(output)

    def steady(self, case: Case, prompt: Tensor, mask: Tensor | None, trace: Trace) -> bool:
        trials = range(1, TRIALS + 1)
        return all(self.run(case, prompt, mask, MOVED, trial) == trace for trial in trials)

    def find(self, case: Case) -> dict[str, Any]:
        """The first prompt with which a case is what it should be, and what comes of it."""
        for number in range(PROMPTS):
            prompt, mask = prompt_of(case, number)
            trace = self.run(case, prompt, mask)
            if not (trace.varied() and case.special(trace)):
                continue
            if any(self.run(changed(case, other), prompt, mask).output == trace.output for other in case.unlike):
                continue
            if self.steady(case, prompt, mask, trace):
                break
        else:
            raise SystemExit(f"none of {PROMPTS} prompts will do for {case.code}, {case.name}")
        print(f"{case.code}: {case.name}: prompt {number}, rows {trace.rows}, filled {trace.committed()}", flush=True)
        found: dict[str, Any] = {
            "name": case.name,
            "code": case.code,
            "network": case.network,
            "settings": case.settings,
        }
        found |= {"prompt": prompt.tolist(), "attention_mask": None if mask is None else mask.tolist()}
        return found | {"output": trace.output, "rows": trace.rows, "filled": trace.filled}


def changed(case: Case, settings: Settings) -> Case:
    return replace(case, settings=case.settings | settings)


def prompt_of(case: Case, number: int) -> tuple[Tensor, Tensor | None]:
    """Prompts (B, P) and, where the code wants it, their attention mask."""
    prompt = text(f"{case.code}, {case.name}, {number}", case.batch, LENGTH)
    prompt[:, list(case.masked)] = MASK
    mask = torch.ones_like(prompt)
    if case.padded:
        prompt[-1, : LENGTH - SHORT], mask[-1, : LENGTH - SHORT] = END, 0
    return prompt, mask if case.padded or "cfg_scale" in case.settings else None


def forwards() -> Iterator[dict[str, Any]]:
    """Logits of a few rows, for two texts of which the second is padded on the left, or not."""
    for code, network, padded in (
        ("LLaDA", "llada", False),
        ("LLaDA", "llada", True),
        ("LLaDA", "illada", False),
        ("Dream", "dream", False),
        ("Dream", "dream", True),
    ):
        name = f"{network}{', padded' if padded else ''}"
        ids = text(f"forward, {name}", 2, 40)
        ids[:, 25::3] = MASK
        mask = torch.ones_like(ids)
        others: dict[str, Any] = {}
        if padded:
            ids[1, :9], mask[1, :9] = END, 0
            others = {"attention_mask": mask} if code == "LLaDA" else dream_padding(mask)
        rows = [9, 25, 39]
        with torch.no_grad():
            logits = CODES[code][0](network)(ids, **others).logits[:, rows]
        found: dict[str, Any] = {"name": name, "network": network, "ids": ids.tolist()}
        found |= {"attention_mask": mask.tolist() if padded else None, "rows": rows}
        # nine digits give back the very float32
        yield found | {"logits": [[[float(f"{v:.9g}") for v in row] for row in one] for one in logits.tolist()]}


def dream_padding(mask: Tensor) -> Settings:
    """What their generation gives the network instead of a mask (B, N)."""
    seen = mask.bool()
    positions = (mask.cumsum(-1) - 1).masked_fill(~seen, 1)
    return {"attention_mask": seen[:, None, None, :] & seen[:, None, :, None], "position_ids": positions}


def written(document: dict[str, Any]) -> str:
    """JSON with a line for each case."""
    lines = []
    for key, value in document.items():
        if isinstance(value, list):
            inside = ",\n".join(json.dumps(case, separators=(",", ":")) for case in value)
            lines.append(f"{json.dumps(key)}: [\n{inside}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    args = parser.parse_args()
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # one of their functions would be compiled
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    runner = Runner()
    document: dict[str, Any] = {
        "made": {"torch": torch.__version__, "transformers": importlib.import_module("transformers").__version__},
        "moved": MOVED,
        "forwards": list(forwards()),
        "runs": [
            runner.find(case)
            for cases in (llada_cases, fast_llada_cases, dream_cases, fast_dream_cases)
            for case in cases()
        ],
    }
    args.out.write_text(written(document))
    print(f"{len(document['runs'])} runs, {args.out.stat().st_size} bytes in {args.out}")


if __name__ == "__main__":
    main()
