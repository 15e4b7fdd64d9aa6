"""Texts in a terminal while they are written: each piece in the colour of what it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from recap.view.frames import Frame, TokenState
from recap.view.pieces import Piece, finished_pieces, pieces_of
from recap.view.say import printable
from recap.view.terminal import DRAWN, Preview

if TYPE_CHECKING:
    from recap.pipelines import TextPipeline
    from recap.runs.works import Done, Failed, Work

STYLES = {
    TokenState.MASKED: "bright_black",
    TokenState.TARGET: "yellow",
    TokenState.DRAWN: DRAWN,
    TokenState.CONTEXT: "",
    TokenState.KNOWN: "bold magenta",
}


class TextPreview(Preview):
    """Shows the texts of a run as their words appear."""

    pipe: TextPipeline  # type: ignore[assignment]

    def look(self, frame: Frame, works: Sequence[Work]) -> list[Text]:
        rows = zip(works, frame.tokens, frame.states, strict=True)
        return [coloured(pieces_of(self.pipe, work, ids, states)) for work, ids, states in rows]

    def ends(self, results: Sequence[Done | Failed]) -> list[Text]:
        done = [result for result in results if hasattr(result, "pixels")]  # the others have failed
        return [coloured(finished_pieces(self.pipe, result.work, result.tokens)) for result in done]

    def counted(self, work: Work, decoded: int) -> str:
        return f"written {decoded - work.schedule.known}/{work.schedule.tokens}"


def coloured(pieces: Iterable[Piece]) -> Text:
    """Pieces of a text in the colours of what they are."""
    text = Text(no_wrap=False)
    for words, state in pieces:
        text.append(printable(words, keep="\n\t"), STYLES[TokenState(state)])
    return text
