"""Every fenced block of README and of the pages, where it stands and what it is, and the commands in it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<info>[^`\n]*)\n(?P<code>.*?)^ *(?P=fence)[`~]* *$", re.M | re.S
)
OPEN = re.compile(r"^ *(?:```|~~~)", re.M)

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
    text, found, end = page.read_text(), list[Block](), 0
    for fenced in FENCE.finditer(text):
        line, last = (text[:at].count("\n") + 1 for at in fenced.span())
        language = (fenced["info"].split() or [""])[0]
        code = re.sub(rf"^ {{0,{len(fenced['indent'])}}}", "", fenced["code"], flags=re.M)
        if found and found[-1].language in PYTHON and language in PRINTED and not text[end : fenced.start()].strip():
            found[-1] = replace(found[-1], printed=code)
        end = fenced.end()
        found.append(Block(page, line + 1, last, language, code))
    if opened := OPEN.search(FENCE.sub(lambda fenced: "\n" * fenced[0].count("\n"), text)):
        line = text[: opened.start()].count("\n") + 1
        raise ValueError(f"{page.name}:{line}: a fenced block is never closed")
    return found


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
