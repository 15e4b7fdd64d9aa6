"""Every fenced block of README and of the pages, where it stands and what it is, and the commands in it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>[^`\n]*)$")

PYTHON = ("python",)  # run as printed
COMMANDS = ("console", "bash", "sh")  # run or parsed; in `console` commands follow a $, the rest is what they print
PRINTED = ("text",)  # right after Python: what it prints; elsewhere a figure made of letters
DATA = ("json",)  # parsed
FIGURES = ("", "bibtex")  # trees and drawings, and a citation: not code
PROMPT = "$ "
LANGUAGES = (*PYTHON, *COMMANDS, *PRINTED, *DATA, *FIGURES)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the page, its first line, the line of the closing fence, its language, and what is in it."""

    page: Path
    line: int
    last: int
    language: str
    code: str
    printed: str | None = None  # what the next block says that this one prints

    @property
    def place(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else Path(self.page.name)
        return f"{page}:{self.line}"

    @property
    def directive(self) -> bool:
        """Whether it is for Sphinx, and judged by building the site."""
        return bool(re.fullmatch(r"\{[\w:-]+\}", self.language))


def pages() -> list[Path]:
    """The files at the root, all pages, and the cards of the models inside."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    return sorted(path for path in found if "_build" not in path.parts)


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order; a `text` right after Python is what that prints."""
    found, lines = list(fenced(page)), page.read_text().splitlines()
    for index, block in enumerate(found[:-1]):
        after = found[index + 1]
        between = "".join(lines[block.last : after.line - 2])
        if block.language in PYTHON and after.language in PRINTED and not between.strip():
            found[index] = replace(block, printed=after.code)
    return found


def fenced(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    place = 0
    while place < len(lines):
        opening = FENCE.match(lines[place])
        place += 1
        if not opening:
            continue
        first, indent, inside = place, len(opening["indent"]), []
        closing = re.compile(rf" *{opening['fence'][0]}{{{len(opening['fence'])},}} *")
        while place < len(lines) and not closing.fullmatch(lines[place]):
            inside.append(lines[place][min(indent, len(lines[place]) - len(lines[place].lstrip())) :])
            place += 1
        if place == len(lines):
            raise ValueError(f"{page.name}:{first}: a fenced block is never closed")
        place += 1
        language = (opening["info"].split() or [""])[0]
        yield Block(page, first + 1, place, language, "".join(f"{line}\n" for line in inside))


def check(block: Block) -> None:
    """What can be said of a block without running it; one that nobody would look at is refused."""
    on_site = block.page.is_relative_to(ROOT / "docs")
    if block.language not in LANGUAGES and not (block.directive and on_site):
        raise AssertionError(
            f"{block.place}: nobody knows how to test a block in {block.language!r}; use one of "
            f"{', '.join(filter(None, LANGUAGES))}, or say in tests/docs/blocks.py what it is"
        )
    assert block.code.strip() or block.directive, f"{block.place}: the block is empty"
    if block.language in DATA:
        try:
            json.loads(block.code)
        except ValueError as error:
            raise AssertionError(f"{block.place}: this is no JSON: {error}") from error
    if block.language == "bibtex":
        whole = block.code.startswith("@") and block.code.count("{") == block.code.count("}")
        assert whole, f"{block.place}: this is no entry of a bibliography"


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
