"""What writing gives back: texts, and how they look while they are being written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from recap.core.schedule import Schedule
from recap.runs.works import Work
from recap.view.frames import Frame
from recap.view.pieces import Piece, pieces_of

if TYPE_CHECKING:
    from recap.pipelines.text import TextPipeline


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
    def pieces(self) -> list[list[Piece]]:
        """Each text as runs of tokens that are alike: drawn just now, drawn before, given, or not written yet."""
        rows = zip(self.works, self.frame.tokens, self.frame.states, strict=False)
        return [pieces_of(self.pipe, work, ids, states, self.pipe.begins(work)) for work, ids, states in rows]

    def __repr__(self) -> str:
        return repr(self.frame).replace("image", "text")
