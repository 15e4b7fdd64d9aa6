"""A terminal as a program sees it: what it is sent, and what is on its screen then."""

from __future__ import annotations

import re

CSI = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
Colour = tuple[int, ...] | None


class Terminal:
    """Understands what previews send, and refuses everything else; long lines do not wrap but are refused too."""

    def __init__(self, columns: int, lines: int) -> None:
        self.columns, self.lines = columns, lines
        self.cells: list[list[tuple[str, Colour, Colour]]] = [[] for _ in range(lines)]
        self.scrolled: list[str] = []  # lines that left at the top
        self.row = self.column = 0
        self.cursor, self.together = True, False
        self.ink: Colour = None
        self.ground: Colour = None

    def feed(self, text: str) -> None:
        place = 0
        while place < len(text):
            sign = text[place]
            if sign == "\x1b":
                match = CSI.match(text, place)
                assert match is not None, f"no sequence: {text[place : place + 12]!r}"
                self._control(*match.groups())
                place = match.end()
                continue
            place += 1
            if sign == "\n":
                self._down()
            elif sign == "\r":
                self.column = 0
            else:
                assert sign.isprintable(), repr(sign)
                assert self.column < self.columns, "a line is longer than the terminal is wide"
                line = self.cells[self.row]
                line += [(" ", None, None)] * (self.column + 1 - len(line))
                line[self.column] = (sign, self.ink, self.ground)
                self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == self.lines:
            self.scrolled.append(self._text(self.cells.pop(0)))
            self.cells.append([])
            self.row -= 1

    def _control(self, private: str, numbers: str, letter: str) -> None:
        values = [int(value or 0) for value in numbers.split(";")]
        if private:
            assert values in ([25], [2026]), numbers
            if values == [25]:
                assert self.cursor is (letter == "l"), "hidden or shown twice"
                self.cursor = letter == "h"
            else:
                self.together = letter == "h"
        elif letter == "m":
            self._style(values)
        elif letter == "A":
            assert values[0] <= self.row, "above the screen"
            self.row -= values[0]
        elif letter == "H":
            self.row = self.column = 0
        elif letter == "K":
            del self.cells[self.row][self.column :]
        elif letter == "J":
            first = 0 if values == [2] else self.row
            self.cells[first:] = [[] for _ in range(self.lines - first)]
        else:
            raise AssertionError(f"unknown sequence {numbers}{letter}")

    def _style(self, values: list[int]) -> None:
        while values:
            kind = values.pop(0)
            if kind == 0:
                self.ink = self.ground = None
            elif kind == 49:
                self.ground = None
            else:
                assert kind in (38, 48), kind
                size = {2: 3, 5: 1}[values.pop(0)]
                colour, values = tuple(values[:size]), values[size:]
                assert len(colour) == size
                assert all(0 <= value <= 255 for value in colour)
                self.ink, self.ground = (colour, self.ground) if kind == 38 else (self.ink, colour)

    @staticmethod
    def _text(line: list[tuple[str, Colour, Colour]]) -> str:
        return "".join(sign for sign, _, _ in line).rstrip()

    @property
    def text(self) -> list[str]:
        """The lines on the screen, without empty ones at its end."""
        lines = [self._text(line) for line in self.cells]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def calm(self) -> bool:
        """Whether the cursor is there and nothing is left switched on."""
        return self.cursor and not self.together and self.ink is self.ground is None

    def halves(self, row: int, column: int) -> tuple[Colour, Colour]:
        """The colours of the upper and the lower half of a cell."""
        line = self.cells[row]
        sign, ink, ground = line[column] if column < len(line) else (" ", None, None)
        return {" ": (ground, ground), "▀": (ink, ground), "▄": (ground, ink)}[sign]
