"""Masked language models of Hugging Face's transformers, BERT's kind, under grouped decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from recap.models.described import DescribedAdapter, Description
from recap.models.family import find

HEADS = ("cls", "lm_head")  # what BERT's and RoBERTa's kind call the layers after the stack


class MaskedLMAdapter(DescribedAdapter):
    """Full and local evaluations of a `...ForMaskedLM` of BERT's kind, which it borrows and never changes.

    That is: norms after the sums, separate q, k and v, a table of positions (BERT, RoBERTa and what is built like
    them). Sequences of a batch may differ in length; padding is on the right, known from the start, and never
    attended to. Only `allowed_ids` are sampled, by default all but the mask and the padding.
    """

    def __init__(
        self,
        model: Any,
        *,
        mask_id: int,
        pad_id: int | None = None,
        allowed_ids: Sequence[int] | None = None,
        num_tokens: int | None = None,
    ) -> None:
        """`num_tokens` is the length of the batch (by default as long as the model allows); see `at`."""
        if not isinstance(model, nn.Module):
            raise ValueError(f"a masked language model is a torch module; {type(model).__name__} is none")
        purpose = "a masked language model of BERT's kind"
        prefix = find(model, "base_model_prefix", purpose)
        embeddings = find(model, f"{prefix}.embeddings", purpose)
        head = next((name for name in HEADS if hasattr(model, name)), HEADS[0])
        if pad_id is None:
            pad_id = find(model, "config.pad_token_id", purpose)
        table = find(model, f"{prefix}.embeddings.position_embeddings", purpose)
        self.first = getattr(embeddings, "padding_idx", -1) + 1  # RoBERTa's kind counts from behind the padding
        self.longest = table.num_embeddings - self.first
        words = range(find(model, f"{prefix}.embeddings.word_embeddings", purpose).num_embeddings)
        allowed = [i for i in words if i not in (mask_id, pad_id)] if allowed_ids is None else list(allowed_ids)
        strange = [i for i in (mask_id, *allowed) if i not in words]
        if strange:
            raise ValueError(f"id {strange[0]} is none of the model's {len(words)} words; give ids that it knows")
        first = self.first

        def embed(ids: Tensor, positions: Tensor) -> Tensor:
            return embeddings(input_ids=ids, position_ids=positions + first)

        layer = "attention.self"
        super().__init__(
            model,
            Description(
                num_tokens=self._checked(num_tokens or self.longest),
                mask_id=mask_id,
                pad_id=pad_id,
                allowed_ids=tuple(allowed),
                embed=embed,
                blocks=f"{prefix}.encoder.layer",
                heads=f"{layer}.num_attention_heads",
                q=f"{layer}.query",
                k=f"{layer}.key",
                v=f"{layer}.value",
                out="attention.output.dense",
                norm1="attention.output.LayerNorm",
                mlp=("intermediate", "output.dense"),
                norm2="output.LayerNorm",
                norms="after",
                logits=head,
            ),
        )

    def at(self, num_tokens: int) -> Self:
        """The same model for batches of another length."""
        return self.replace(config=replace(self.config, num_tokens=self._checked(num_tokens)))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, N, V) of the model's own forward, padding masked."""
        pad = self.description.pad_id
        assert pad is not None
        return self.module(input_ids=ids, attention_mask=(ids != pad).long()).logits

    def _checked(self, num_tokens: int) -> int:
        if not 1 <= num_tokens <= self.longest:
            raise ValueError(f"a sequence has {num_tokens} tokens; this model has places for 1 to {self.longest}")
        return num_tokens
