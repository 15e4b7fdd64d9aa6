"""What is asked of a language model, checked: prompts, chats, ids, and how they are to be continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from recap.core.options import SamplingOptions
from recap.models.text import TextAdapter
from recap.pipelines.base import Asked
from recap.pipelines.inputs import Generators

Message = Mapping[str, str]


class WriteRequest(TypedDict, total=False):
    """What every way of writing takes; names are those of diffusers where they mean the same.

    prompt: a text, or a list of them; masks in it, as the tokenizer spells them, are filled in as well. messages:
    a chat, or a list of them, for the tokenizer's template. input_ids: ids in their place, one row or a list of rows,
    of which `attention_mask` leaves out what fills them up. gen_length: tokens to write behind the prompt. num_texts:
    answers to each prompt. schedule: how, as text ("64+192", ":preset=fast-dllm-dual,threshold=0.9"), options, or a
    `Schedule`; block_length, temperature, top_k, top_p, threshold and guidance change it. With guidance the other
    branch has masks in the place of the prompt; 1 + LLaDA's cfg_scale means the same. eos_early_stop: what follows
    the end of a text is not computed, and not shown. generator, seed: the randomness, as for images.
    """

    messages: Sequence[Message] | Sequence[Sequence[Message]] | None
    input_ids: Tensor | Sequence[int] | Sequence[Sequence[int]] | None
    attention_mask: Tensor | None
    gen_length: int | None
    num_texts: int
    schedule: Asked | None
    block_length: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    threshold: float | None
    guidance: float | None
    eos_early_stop: bool
    generator: Generators | None
    seed: int | None


def changes(asked: WriteRequest) -> SamplingOptions:
    """What single arguments change in the options."""
    names = {"block_length": "block", **{n: n for n in ("temperature", "top_k", "top_p", "threshold", "guidance")}}
    values = {option: asked.get(name) for name, option in names.items()}
    return SamplingOptions(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]


def rows_of(ids: Any, attention_mask: Tensor | None) -> list[list[int]]:
    """Rows of ids, without those that fill them up."""
    if isinstance(ids, Tensor):
        ids = ids.tolist()
    rows = [ids] if ids and isinstance(ids[0], int) else list(ids)
    if not rows or any(not isinstance(token, int) or isinstance(token, bool) for row in rows for token in row):
        raise ValueError(f"input_ids are {ids!r:.80}; expected a row of integers, or a list of rows")
    if attention_mask is None:
        return [list(row) for row in rows]
    kept = torch.as_tensor(attention_mask).tolist()
    kept = [kept] if kept and not isinstance(kept[0], list) else kept
    if [len(row) for row in kept] != [len(row) for row in rows]:
        raise ValueError("attention_mask and input_ids differ in shape; give a 0 or a 1 for each id")
    return [
        [token for token, keep in zip(row, keeps, strict=True) if keep] for row, keeps in zip(rows, kept, strict=True)
    ]


def chats_of(messages: Sequence[Any]) -> list[Sequence[Message]]:
    """One chat, or several."""
    chats = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
    for chat in chats:
        if not chat or not all(isinstance(m, Mapping) and {"role", "content"} <= set(m) for m in chat):
            raise ValueError(
                f"messages are {messages!r:.80}; expected a list of {{'role': 'user', 'content': '...'}}"
            )
    return chats


def encoded(tokenizer: Any, text: str, special: bool = True) -> list[int]:
    """The ids of a text; masks and other specials that are spelled out in it count as such."""
    if hasattr(tokenizer, "apply_chat_template"):  # of transformers
        return list(tokenizer.encode(text, add_special_tokens=special))
    return list(tokenizer.encode(text, specials=True))


def check_tokenizer(tokenizer: Any, model: TextAdapter) -> None:
    """Refuse a tokenizer that is not the model's."""
    if tokenizer is None:
        return
    if missing := [name for name in ("encode", "decode") if not hasattr(tokenizer, name)]:
        raise ValueError(f"{type(tokenizer).__name__} has no {missing[0]}(); give a tokenizer")
    if len(tokenizer) > model.config.codes:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} ids but the model {model.config.codes}; give its own tokenizer"
        )
