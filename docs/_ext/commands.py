"""The page on the command line, written from the parsers that the commands themselves use."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from sphinx.application import Sphinx

from recap.cli import parser

PAGE, MARK = "commands", "<!-- every command, with its options -->"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", fill)
    app.connect("env-get-outdated", lambda *_: [PAGE])  # its text may stay while the parsers change
    return {"parallel_read_safe": True}


def fill(app: Sphinx, page: str, source: list[str]) -> None:
    """Put every command in the place of the mark."""
    if page == PAGE:
        if MARK not in source[0]:
            raise ValueError(f"{page}.md has no line {MARK!r}; put one where the commands are to be listed")
        source[0] = source[0].replace(MARK, every_command())


def every_command() -> str:
    """All commands in a table, and a section for each, in the order of `recap --help`."""
    found = list(commands(parser()))
    table = [f"| [{name}](#{name.replace(' ', '-')}) | {summary(command)} |" for name, command in found]
    sections = [line for name, command in found for line in section(name, command)]
    return "\n".join(["| command | what it does |", "|---|---|", *table, "", *sections])


def commands(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands below a parser, with the words that call them."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command.prog, command
                yield from commands(command)


def summary(command: argparse.ArgumentParser) -> str:
    """The first sentence of what a command says of itself."""
    return prose(command.description or "").split("\n\n")[0].replace("\n", " ").removesuffix(".")


def section(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    """One command in Markdown: what it does, how it is called, and every option by group."""
    places = [shown(action) for action in command._actions if not action.option_strings]
    yield from (f"## {name}", "", prose(command.description or ""), "")
    yield from ("```text", " ".join([name, "[options]", *places]), "```", "", f"```{{program}} {name}", "```", "")
    for group in command._action_groups:
        actions = [action for action in group._group_actions if listed(action)]
        if not actions:
            continue
        if group.title not in ("positional arguments", "options"):
            yield from (f"**{group.title}**", "")
        for action in actions:
            heads = [shown(action)] if not action.option_strings else options(action)
            yield from (f"````{{option}} {', '.join(heads)}", explained(action), "````", "")


def listed(action: argparse.Action) -> bool:
    kinds = (argparse._HelpAction, argparse._SubParsersAction)
    return action.help != argparse.SUPPRESS and not isinstance(action, kinds)


def options(action: argparse.Action) -> list[str]:
    """The ways to write an option, each with its value."""
    value = "" if action.nargs == 0 else f" {shown(action)}"
    return [f"{flag}{value}" for flag in action.option_strings]


def shown(action: argparse.Action) -> str:
    """What stands for the value of an argument."""
    name = action.metavar or ("VALUE" if action.choices else action.dest.upper())
    name = " ".join(name) if isinstance(name, tuple) else name
    repeated = {"+": f"{name} ...", "*": f"[{name} ...]", "?": f"[{name}]"}
    return repeated.get(str(action.nargs), name)


def explained(action: argparse.Action) -> str:
    """The help of an argument, with its choices and its default where the help does not say them."""
    text = prose((action.help or "").replace("%%", "%"))
    if action.choices:
        text += f"{': ' if text else ''}{', '.join(f'`{choice}`' for choice in action.choices)}"
    nothing = any(action.default is value for value in (None, False, argparse.SUPPRESS)) or action.default == []
    if not nothing and "default" not in text:
        text += f" (default `{action.default}`)"
    text = text.strip()
    return text[:1].upper() + text[1:]


def prose(text: str) -> str:
    """Text for Markdown: options are code, like what is code already, and a less-than sign begins no tag."""
    text = re.sub(r"`[^`]*`|(?<![\w-])(--[a-z][a-z-]*)", lambda m: f"`{m[1]}`" if m[1] else m[0], text.strip())
    return re.sub(r"<(?=\w)", r"\\<", text)
