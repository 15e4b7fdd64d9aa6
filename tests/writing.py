"""A small model of text with random weights, whose tokens are bytes and a few pairs of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.models.registry import build, randomize
from recap.models.text import TextConfig
from recap.pipelines import TextPipeline
from recap.tokenizers import BPE
from tests.tokenizers.test_bpe import content

SMALL: dict[str, Any] = {"width": 32, "depth": 2, "heads": 4, "kv_heads": 2, "hidden": 48, "num_tokens": 64}


def text_pipeline(tokenizer: Any = None, **sizes: Any) -> TextPipeline:
    """One that writes at most 64 tokens, prompt and all."""
    spelled = BPE.parse(content())
    ids = {"codes": len(spelled), "mask_id": spelled.mask_id, "eos_id": spelled.eos_id}
    pipe = TextPipeline(randomize(build(TextConfig(**{**SMALL, **ids, **sizes})), 0), tokenizer or spelled)
    pipe.progress = False
    return pipe


def write_model(folder: Path, **sizes: Any) -> Path:
    """Such a model as a folder."""
    text_pipeline(**sizes).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(content()))
    return folder


class Chatty:
    """A tokenizer with a template for chats."""

    chat_template = "{{ messages }}"

    def __init__(self) -> None:
        self.inner = BPE.parse(content())

    def __len__(self) -> int:
        return len(self.inner)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.inner.encode(text, specials=True)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.inner.decode(ids, skip_special_tokens)

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return "".join(f"{m['role']}: {m['content']}\n" for m in messages)
