#!/usr/bin/env python3
"""How long LLaDA's and Fast-dLLM's own code takes to write, and this library with the same weights, in turn.

    RECAP_OTHERS=others python benchmarks/text_speed.py --batch 1 4 --json docs/performance/text.json

RECAP_OTHERS as in benchmarks/text_parity.py. The network is LLaDA's with about 100 M random weights, in float32; a
prompt and as many tokens to write make 512. Their loop takes the same time at every step, so that `--share 8` runs an
eighth of its steps and multiplies. Threads are torch's own for both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import text_parity
from tests.models import text_weights

import recap
from recap.pipelines import TextPipeline

WRITTEN = 256
LARGE: dict[str, Any] = text_weights.LLADA | {
    "d_model": 768, "n_layers": 12, "n_heads": 12, "n_kv_heads": 12, "mlp_hidden_size": 2048, "vocab_size": 8192,
    "embedding_size": 8192, "mask_token_id": 8191, "eos_token_id": 8190, "pad_token_id": 8190,
}  # fmt: skip
MASK, BLOCK = LARGE["mask_token_id"], 32


def official(package: str, *folders: str) -> Any:
    """The authors' network with random weights, none of which makes it draw the mask."""
    name = text_parity.package(package, *folders)
    config = importlib.import_module(f"{name}.configuration_llada").LLaDAConfig(**LARGE)
    net = importlib.import_module(f"{name}.modeling_llada").LLaDAModelLM(config).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(net.state_dict().items()):
            if weight.ndim == 2:
                weight.normal_(std=weight.shape[1] ** -0.5, generator=random)
                if weight.shape[0] == LARGE["vocab_size"]:
                    weight[MASK] = 0.0
            else:
                weight.fill_(1.0)
    return net


def llada(prompt: Tensor, share: int) -> Callable[[], float]:
    """LLaDA's generate with one token a step, or the share of it."""
    net = official("llada", "llada")
    generate = importlib.import_module("llada.generate").generate

    def run() -> float:
        began = time.perf_counter()
        generate(net, prompt, steps=WRITTEN // share, gen_length=WRITTEN, block_length=WRITTEN, mask_id=MASK)
        return (time.perf_counter() - began) * share

    return run


def fast_dllm(prompt: Tensor) -> Callable[[], float]:
    """Fast-dLLM's dual cache with one token a step."""
    net = official("model", "Fast-dLLM", "llada", "model")
    text_parity.package("fast_llada", "Fast-dLLM", "llada")
    generate = importlib.import_module("fast_llada.generate").generate_with_dual_cache

    def run() -> float:
        began = time.perf_counter()
        _, evaluations = generate(net, prompt, steps=WRITTEN, gen_length=WRITTEN, block_length=BLOCK, mask_id=MASK)
        assert evaluations == WRITTEN, evaluations
        return time.perf_counter() - began

    return run


def ours(prompt: Tensor, schedule: str) -> Callable[[], float]:
    """This library over LLaDA's own object."""
    pipe = TextPipeline(recap.wrap(official("llada", "llada")), batch_size=len(prompt))
    pipe.progress = False

    def run() -> float:
        began = time.perf_counter()
        pipe(input_ids=prompt, gen_length=WRITTEN, schedule=schedule, seed=0, output_type="ids", eos_early_stop=False)
        return time.perf_counter() - began

    return run


def ratios(theirs: Callable[[], float], mine: Callable[[], float], repeat: int) -> dict[str, Any]:
    """Theirs over ours, in turn."""
    pairs = [(theirs(), mine()) for _ in range(repeat)]
    found = [a / b for a, b in pairs]
    return {"ratio": statistics.median(found), "range": [min(found), max(found)], "seconds": pairs}


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description="LLaDA's and Fast-dLLM's own code, and this library, in turn")
    options.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--share", type=int, default=8, help="of LLaDA's steps that are run (default an eighth)")
    options.add_argument("--json", type=Path, help="write the figures here")
    return options


def main() -> None:
    args = parser().parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads(), "share": args.share}
    for batch in args.batch:
        prompt = torch.randint(0, MASK - 1, (batch, WRITTEN), generator=torch.Generator().manual_seed(1))
        blocks = WRITTEN // BLOCK
        dual = f"{blocks}+{WRITTEN - blocks}:preset=fast-dllm-dual"
        with torch.inference_mode():
            found[f"llada {batch}"] = ratios(
                llada(prompt, args.share), ours(prompt, "64+192:temperature=0"), args.repeat
            )
            print(batch, found[f"llada {batch}"], flush=True)
            # their dual cache takes one text at a time
            found[f"fast-dllm {batch}"] = ratios(
                lambda theirs=[fast_dllm(row[None]) for row in prompt]: sum(run() for run in theirs),  # type: ignore[misc]
                ours(prompt, dual),
                args.repeat,
            )
            print(batch, found[f"fast-dllm {batch}"], flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
