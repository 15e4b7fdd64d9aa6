"""What pages say between their blocks: code within lines, links, headings."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from recap.cli import parser
from tests.docs.blocks import ROOT, blocks

SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
FLAG = re.compile(r"(?<!\S)--[a-z][a-z0-9-]*")


def prose(page: Path) -> str:
    """A page without its blocks; line numbers stay."""
    lines = page.read_text().splitlines()
    for block in blocks(page):
        for line in range(block.line - 2, block.last):
            lines[line] = ""
    return "\n".join(lines)


def spans(page: Path) -> Iterator[tuple[str, str]]:
    """Code within lines, and where it stands; a span ends with its paragraph."""
    text = prose(page)
    for found in SPAN.finditer(text):
        if "\n\n" not in found[2]:
            yield place(page, text, found.start()), " ".join(found[2].split())


def links(page: Path) -> Iterator[tuple[str, str]]:
    """Where a page leads to, code left out."""
    text = SPAN.sub(lambda found: "\n" * found[0].count("\n"), prose(page))
    for found in LINK.finditer(text):
        yield place(page, text, found.start()), found[1]


def place(page: Path, text: str, at: int) -> str:
    name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name
    return f"{name}:{text[:at].count(chr(10)) + 1}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        if heading := re.fullmatch(r"#{1,6} +(.*?) *#*", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "").lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            found.add(next(name for name in [slug, *(f"{slug}-{n}" for n in range(1, 99))] if name not in found))
    if page == ROOT / "docs" / "commands.md":  # filled in when the site is built
        found |= {f"recap-{name}" for name in subcommands()}
    return found


def check_link(page: Path, target: str) -> None:
    """A link leads to a file or folder that is there, and to a heading that it has."""
    if re.match(r"[a-z]+:", target):
        assert re.match(r"https?://\w|mailto:\w", target), f"{target} is no address"
        return
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    assert there.exists(), f"{target} leads to {path}, which is not there"
    if anchor:
        assert there.suffix == ".md", f"{target} leads to a place in something that has no headings"
        assert anchor in anchors(there), f"{there.name} has no heading for #{anchor}"


@cache
def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


@cache
def flags(name: str | None = None) -> frozenset[str]:
    """The options of a command; without a name, those of all commands and scripts and of the launcher."""
    if name is not None:
        return frozenset(subcommands()[name]._option_string_actions)
    from torch.distributed.run import get_args_parser

    scripts = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).glob("*.py")]
    scripts = [path for path in scripts if "def parser(" in path.read_text()]
    parsers = [importlib.import_module(f"{path.parent.name}.{path.stem}").parser() for path in scripts]
    parsers += [*subcommands().values(), parser(), get_args_parser()]
    return frozenset(flag for one in parsers for flag in one._option_string_actions)


def check_span(code: str) -> None:
    """Commands, options, names and files that are spoken of are there; words in capitals stand for others."""
    words = code.split()
    if words[0] == "recap" and len(words) > 1 and re.fullmatch(r"[a-z]+", words[1]):
        assert words[1] in subcommands(), f"recap has no command {words[1]!r}"
        unknown = set(FLAG.findall(code)) - flags(words[1])
        assert not unknown, f"recap {words[1]} has no {', '.join(unknown)}"
    elif words[0].startswith("--"):
        unknown = set(FLAG.findall(code)) - flags()
        assert not unknown, f"no command has {', '.join(unknown)}"
    elif words[0] == "make" and len(words) == 2:
        assert re.search(rf"^{re.escape(words[1])}:", (ROOT / "Makefile").read_text(), re.M), f"no target {words[1]}"
    elif found := re.match(r"recap((?:\.\w+)+)", code):
        check_name(found[0])
    elif re.fullmatch(r"[\w.*/-]*/[\w.*/-]*", code) and re.match(r"(src|docs|tests|benchmarks|examples)/", code):
        assert list(ROOT.glob(code)), f"there is no {code}"
    elif re.fullmatch(r"[\w*]+(/[\w*]+)*\.py", code):
        found_files = [*(ROOT / "src" / "recap").rglob(code.replace("NAME", "*")), *ROOT.glob(code)]
        assert found_files, f"there is no {code}"
    elif re.fullmatch(r"test_\w+", code):
        assert any(f"def {code}(" in path.read_text() for path in (ROOT / "tests").rglob("test_*.py")), f"no {code}"
    elif words[0] == "python" and len(words) > 1 and words[1].startswith("benchmarks/"):
        script = importlib.import_module(words[1].removesuffix(".py").replace("/", "."))
        unknown = set(FLAG.findall(code)) - set(script.parser()._option_string_actions)
        assert not unknown, f"{words[1]} has no {', '.join(unknown)}"


def check_name(name: str) -> None:
    """A dotted name of the package leads to something."""
    thing = importlib.import_module("recap")
    path = "recap"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(thing, part):
            assert importlib.util.find_spec(path), f"there is no {path}"
            importlib.import_module(path)
        thing = getattr(thing, part)
