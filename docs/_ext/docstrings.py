"""Docstrings for the Python API: names in single backticks, and what the comments beside fields say."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import io
import re
import tokenize
from typing import Any

from sphinx.application import Sphinx

import recap

CODE = re.compile(r"(?<![`:])`([^`\n]+)`(?!`)")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", rewrite)
    return {"parallel_read_safe": True}


def rewrite(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """A docstring as Sphinx reads it: code is code, public names are links, and fields have their comments."""
    text = CODE.sub(marked, "\n".join(lines))
    if what in ("function", "method"):
        names = "|".join(map(re.escape, inspect.signature(thing).parameters)) or "$"
        text = re.sub(rf"(?<![\w*`])({names})(?=: )", r"**\1**", text)  # "seed: what it does" stands out
    lines[:] = text.splitlines()
    if what == "class" and (found := comments(thing)):
        lines += ["", *(f"- ``{field}``: {CODE.sub(marked, comment)}" for field, comment in found.items()), ""]


def marked(match: re.Match[str]) -> str:
    """Code between backticks: a link where it is a public name."""
    end = r"\ " if re.match(r"\w", match.string[match.end() :]) else ""  # letters may follow, as in `TokenState`s
    name = match[1].removeprefix("recap.").removesuffix("(...)").removesuffix("()")
    first = name.partition(".")[0]
    if first in recap.__all__ and re.fullmatch(r"[\w.]+", name):
        return f":py:obj:`{match[1]} <recap.{name}>`{end}"
    return f"``{match[1]}``{end}"


def comments(thing: type[Any]) -> dict[str, str]:
    """The comments at the ends of the lines that declare the fields of a class."""
    if dataclasses.is_dataclass(thing):
        names = [field.name for field in dataclasses.fields(thing)]
    elif issubclass(thing, enum.Enum):
        names = [member.name for member in thing]
    else:
        names = list(getattr(thing, "_fields", ()))
    found: dict[str, str] = {}
    first = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(thing)).readline):
        if token.type == tokenize.NEWLINE:
            first = ""
        elif token.type == tokenize.NAME and not first:
            first = token.string
        elif token.type == tokenize.COMMENT and first in names:
            found[first] = token.string.lstrip("# ")
    return found
