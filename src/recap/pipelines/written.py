"""What writing gives back: texts, and how they look while they are being written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from recap.core.schedule import Schedule
from recap.runs.works import Work
from recap.view.frames import Frame, TokenState

if TYPE_CHECKING:
    from recap.pipelines.text import TextPipeline

HOLE = "░"  # stands for a token that is not written yet


@dataclass(frozen=True, slots=True)
class TextOutput:
    """What a call returns: texts, the ids that were written, and what was run.

    Texts and sequences are what follows the prompt, or all of it where there were masks in the prompt; behind its end
    a sequence has only ends.
    """

    texts: list[str] | None
    sequences: list[Tensor]
    schedules: tuple[Schedule, ...]

    @property
    def schedule(self) -> Schedule:
        """How the first text was written."""
        return self.schedules[0]

    def __repr__(self) -> str:
        count, lengths = len(self.sequences), [len(ids) for ids in self.sequences]
        evaluations = " and ".join(dict.fromkeys(map(str, self.schedules)))
        tokens = f"{min(lengths)}" + (f" to {max(lengths)}" if max(lengths) > min(lengths) else "")
        return f"<TextOutput: {count} text{'s' * (count != 1)} of {tokens} tokens, {evaluations} evaluations>"


@dataclass(frozen=True, slots=True)
class TextFrame:
    """Texts after one sub-step; `states` (B, N) say what each token is, as for images."""

    frame: Frame
    works: tuple[Work, ...]
    pipe: TextPipeline

    @property
    def texts(self) -> list[str]:
        """The texts so far, with a sign for every token that is not written yet."""
        return ["".join(text for text, _ in pieces) for pieces in self.pieces]

    @property
    def pieces(self) -> list[list[tuple[str, TokenState]]]:
        """Each text as runs of tokens that are alike: drawn just now, drawn before, given, or not written yet."""
        tokenizer, shown = self.pipe.need_tokenizer(), []
        for work, ids, states in zip(self.works, self.frame.tokens, self.frame.states, strict=False):
            begin, end = self.pipe.begins(work), work.label or len(ids)
            runs: list[tuple[TokenState, list[int]]] = []
            for token, state in zip(ids[begin:end].tolist(), states[begin:end].tolist(), strict=True):
                if not runs or runs[-1][0] != state:
                    runs.append((TokenState(state), []))
                runs[-1][1].append(token)
            shown.append(
                [
                    (HOLE * len(run) if state <= TokenState.TARGET else str(tokenizer.decode(run)), state)
                    for state, run in runs
                ]
            )
        return shown

    def __repr__(self) -> str:
        return repr(self.frame).replace("image", "text")
