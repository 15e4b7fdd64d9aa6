"""A text under way as runs of tokens that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recap.view.frames import TokenState

if TYPE_CHECKING:
    from recap.pipelines.text import TextPipeline
    from recap.runs.works import Work

HOLE = "░"  # stands for a token that is not written yet
Piece = tuple[str, TokenState]  # some of a text, and what its tokens are


def pieces_of(pipe: TextPipeline, work: Work, ids: Tensor, states: Tensor, begin: int = 0) -> list[Piece]:
    """A text from token `begin` on, of all its `ids` and their states (N); a hole for what is not written yet."""
    tokenizer, end = pipe.need_tokenizer(), work.label or len(ids)
    runs: list[tuple[TokenState, list[int]]] = []
    for token, state in zip(ids[begin:end].tolist(), states[begin:end].tolist(), strict=True):
        if not runs or runs[-1][0] != state:
            runs.append((TokenState(state), []))
        runs[-1][1].append(token)
    return [
        (
            HOLE * len(run) if state <= TokenState.TARGET else str(tokenizer.decode(run, skip_special_tokens=True)),
            state,
        )
        for state, run in runs
    ]


def finished_pieces(pipe: TextPipeline, work: Work, ids: Tensor) -> list[Piece]:
    """A finished text of all its `ids` (N): what was given, and what was written up to its end."""
    assert work.start is not None
    written = pipe.written(work, ids)
    whole = torch.cat([ids[: (work.label or len(ids)) - len(written)], written])
    known = ~work.start.masked[: len(whole)].to(whole.device)
    return pieces_of(pipe, work, whole, torch.where(known, int(TokenState.KNOWN), int(TokenState.CONTEXT)))
