"""A few lines at the bottom of a terminal that are drawn again and again in their place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self, TextIO

from recap.terminal import RESET, width_of

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor
BEGIN, END = "\x1b[?2026h", "\x1b[?2026l"  # terminals that know them show all that lies between at once
CLEAR, BELOW, LINE = "\x1b[H\x1b[2J", "\x1b[J", "\x1b[K"  # the screen, what is below the cursor, the rest of a line
USUAL = (80, 24)


class Screen:
    """Draws blocks of lines over each other, and leaves the cursor as it was however it ends.

    Between two drawings the cursor waits below the block, where other messages do not hurt it.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.shown: list[str] = []
        self._size = self.size
        self._hidden = False
        self._handler: Any = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines of the terminal, as they are now."""
        try:
            columns, lines = os.get_terminal_size(self.file.fileno())
        except (OSError, ValueError):
            columns, lines = USUAL
        return (columns or USUAL[0], lines or USUAL[1])  # some terminals do not tell, and say 0

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGTSTP"):
            self._handler = signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show()
        if self._handler is not None:
            signal.signal(signal.SIGTSTP, self._handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Let these lines, each shorter than the terminal is wide, take the place of those before."""
        size = self.size
        text = ["" if self._hidden else HIDE, BEGIN, self._back(size)]
        self._hidden = True
        for place, line in enumerate(lines):
            same = place < len(self.shown) and self.shown[place] == line
            text.append("\n" if same else f"\r{line}{LINE}\n")
        text.append("\r" + (BELOW if len(self.shown) > len(lines) else "") + END)
        self.shown, self._size = list(lines), size
        self._write("".join(text))

    def settle(self) -> None:
        """Leave the block where it is; the next one begins below it."""
        self.shown = []

    def _back(self, size: tuple[int, int]) -> str:
        """To where the block begins, which another size of the terminal may have wrapped or moved."""
        above = len(self.shown)
        up = f"\r\x1b[{above}A" if above else "\r"
        if size == self._size or not above:
            return up
        widest = max(map(width_of, self.shown))
        self.shown = []
        return CLEAR if widest >= size[0] or above >= size[1] else up + BELOW

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its cursor back; the block is drawn anew below whatever it printed meanwhile."""
        self._show()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when the process is in the foreground again
        signal.signal(signal.SIGTSTP, self._suspend)
        self.settle()

    def _show(self) -> None:
        """Give the cursor back; an escape character ends whatever sequence an interruption may have cut."""
        if self._hidden:
            self._write(f"{RESET}{END}\r{LINE}{SHOW}")
        self._hidden = False

    def _write(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()
