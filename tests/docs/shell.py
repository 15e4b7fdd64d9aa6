"""Commands as pages show them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.docs.blocks import Block

PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Command:
    """One line for a shell, continued lines joined, and what the page shows below it."""

    place: str
    text: str
    printed: str = ""

    def parts(self) -> Iterator[list[str]]:
        """The words of each command of the line; they run one after another."""
        for part in re.split(r"\s&&\s", self.text):
            try:
                words = shlex.split(part, comments=True)
            except ValueError as error:
                raise AssertionError(f"{self.place}: {part!r} is no shell command: {error}") from error
            if words:
                yield words


def commands(block: Block) -> list[Command]:
    """The commands of a block: after a prompt in `console`, every line elsewhere."""
    prompted = block.language == "console"
    found: list[Command] = []
    lines = block.code.splitlines()
    place = 0
    while place < len(lines):
        first, line = place, lines[place]
        place += 1
        if prompted and not line.startswith(PROMPT):
            if not found:
                raise AssertionError(
                    f"{block.place}: a console block begins with {line!r}; put {PROMPT!r} before commands"
                )
            last = found[-1]
            found[-1] = Command(last.place, last.text, f"{last.printed}{line}\n")
            continue
        text = line.removeprefix(PROMPT)
        while text.endswith("\\") and place < len(lines):
            text = f"{text[:-1].rstrip()} {lines[place].strip()}"
            place += 1
        where = f"{block.place.rpartition(':')[0]}:{block.line + first}"
        if text.strip():
            found.append(Command(where, text))
    if not found:
        raise AssertionError(f"{block.place}: a block of commands has none; use `text` for what is printed")
    return found
