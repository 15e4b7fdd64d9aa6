"""How much do context features move when further tokens become known? (Figure 2 of the paper.)

Reuse pays because they hardly do. A sample's tokens are put in a random order; the first K are the context, the
rest is masked. Then n more are shown with their true values. What goes into the attention of each layer is pooled
over the K context tokens before and after, and the two vectors are compared by their cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.canvas import Canvas, Draw, take
from recap.core.noise import Noise, image_generators
from recap.models.adapter import Adapter
from recap.view.progress import tqdm

MAX_CONTEXT = 128  # the paper's largest context


@dataclass(frozen=True, slots=True)
class Drift:
    """Similarity of the context before and after an update, mean over samples.

    `similarity[i][j][layer]` belongs to `contexts[i]` and `updates[j]`; the list of a large context is shorter
    where fewer tokens are left to show.
    """

    layers: list[str]
    contexts: list[int]
    updates: list[int]
    similarity: list[list[list[float]]]
    samples: int

    @property
    def mean(self) -> list[list[float]]:
        """Mean over layers, by context and update."""
        return [[fmean(layers) for layers in rows] for rows in self.similarity]

    @property
    def spread(self) -> list[list[float]]:
        """Standard deviation over layers, by context and update."""
        return [[pstdev(layers) for layers in rows] for rows in self.similarity]

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "mean": self.mean, "spread": self.spread}


@torch.inference_mode()
def feature_drift(
    model: Adapter,
    tokens: Tensor,
    labels: Tensor | None = None,
    contexts: Sequence[int] = (),
    updates: Sequence[int] = (),
    *,
    seed: int = 0,
    batch: int = 8,
    progress: bool = False,
) -> Drift:
    """Measure the drift on whole images given as tokens (B, N) or (B, N, C), in raster order.

    Without labels, a model of classes is measured in its unconditional branch. Contexts are 2, 4, ... up to 128 or
    half of the tokens by default, updates 1, 2, 4, ... up to what is left. A sample's order depends on the seed
    and its index alone, not on the batch.
    """
    size, powers = model.num_tokens, [2**i for i in range(model.num_tokens.bit_length())]
    contexts = sorted(contexts) or [k for k in powers if 2 <= k <= min(MAX_CONTEXT, size // 2)]
    updates = sorted(updates) or [n for n in powers if n <= size - contexts[0]]
    pairs = [(k, n) for k in contexts for n in updates if k + n <= size]
    stops = sorted({*contexts, *(k + n for k, n in pairs)})
    sums: dict[tuple[int, int], dict[str, float]] = {pair: {} for pair in pairs}
    batches = range(0, len(tokens), batch)
    with tqdm(total=len(batches) * len(stops), desc="drift", unit="evaluation", disable=not progress) as bar:
        for first in batches:
            some = slice(first, min(first + batch, len(tokens)))
            noise = Noise(image_generators(seed, range(some.start, some.stop)), model.device)
            before: dict[int, dict[str, Tensor]] = {}
            for canvas in reveal(model, tokens[some], None if labels is None else labels[some], stops, noise):
                pooled = context_features(model, canvas, [k for k in contexts if k <= canvas.decoded])
                if canvas.decoded in contexts:
                    before[canvas.decoded] = pooled[canvas.decoded]
                for k, n in pairs:
                    if k + n == canvas.decoded:
                        for name, vector in pooled[k].items():
                            total = float(cosine_similarity(before[k][name], vector).sum())
                            sums[k, n][name] = sums[k, n].get(name, 0.0) + total
                bar.update()
    layers = list(sums[pairs[0]])
    similarity = [
        [[sums[k, n][name] / len(tokens) for name in layers] for n in updates if k + n <= size] for k in contexts
    ]
    return Drift(layers, list(contexts), list(updates), similarity, len(tokens))


def reveal(
    model: Adapter, tokens: Tensor, labels: Tensor | None, stops: Sequence[int], noise: Noise
) -> Iterator[Canvas]:
    """The canvas with the first tokens of a random order known, for each number in `stops` (ascending)."""
    order = noise.permutation(model.num_tokens)  # (B, N)
    values = take(tokens.to(model.device), order)
    if labels is None and model.classes:
        # the null class has no label: guidance's second branch is the way to it
        canvas = model.start(torch.zeros_like(order[:, 0]), order, 2)
    else:
        canvas = model.start(None if labels is None else labels.to(model.device), order, 1)
    for stop in stops:
        canvas.commit(Draw(values[:, canvas.decoded : stop]))
        yield canvas


def context_features(model: Adapter, canvas: Canvas, contexts: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """What goes into each attention layer in a full evaluation, averaged over the first K tokens for each K.

    Returns (B, D) vectors by K and layer; with two branches, those of the last one.
    """
    # every layer's rows are class or buffer rows, then tokens in order of arrival
    prefix = max(stack.rows for stack in model.cache_layout().stacks) - model.num_tokens
    pooled: dict[int, dict[str, Tensor]] = {k: {} for k in contexts}

    def see(name: str, x: Tensor) -> None:
        for k in contexts:
            pooled[k][name] = x[-canvas.batch :, prefix : prefix + k].double().mean(dim=1)  # (B, D)

    with ExitStack() as hooks:
        modules = model.module.named_modules()
        layers = {name: getattr(module, "qkv", getattr(module, "q_proj", None)) for name, module in modules}
        found = {name: qkv for name, qkv in layers.items() if isinstance(qkv, nn.Module)}
        if not found:
            kind = type(model.module).__name__
            raise ValueError(f"{kind} has no attention layer with a `qkv` or `q_proj` module; give one that has")
        for name, qkv in found.items():
            handle = qkv.register_forward_pre_hook(lambda _, inputs, name=name: see(name, inputs[0]))
            hooks.callback(handle.remove)
        model.full(canvas, None, slice(0, 1))
    return pooled


def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between vectors (B, D), as 1 - |a' - b'|^2 / 2: exactly 1 for equal ones."""
    unit = nn.functional.normalize
    return (1 - (unit(a, dim=-1) - unit(b, dim=-1)).square().sum(dim=-1) / 2).clamp_min(-1.0)  # (B)
