"""The programs that pages call: each is run where that is quick, and otherwise understood by its own parser."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import re
import tomllib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from packaging.requirements import Requirement

from recap.cli import main, parser
from recap.core.options import SamplingOptions
from recap.models.registry import size_name
from recap.weights import locate
from tests.docs import smaller
from tests.docs.blocks import ROOT, Command
from tests.docs.web import Web

SERVERS = ("serve", "studio")
# what is run; the others (evaluate, sweep, bench, train, ...) take minutes even when small, and are parsed
RUN = ("sample", "edit", "write", "verify", "convert", "plan", "models", "serve", "studio")
NEEDED = {
    "antibodies": ("antiberty", "transformers"),
    **dict.fromkeys(SERVERS, ("fastapi", "uvicorn")),
}  # else parsed
ANYTHING = "..."  # stands for options that the page has named before
FULL_SIZE = ("plan", "models")  # load nothing, so that they may speak of the real sizes


class Shell:
    """Takes commands of one page in turn; a server that was started is there for those that come after."""

    def __init__(self, small: Callable[[], AbstractContextManager[None]]) -> None:
        """`small` makes networks small while a command runs."""
        self.web, self.small = Web(), small
        self.known: dict[str, Callable[[list[str]], str | None]] = {
            "recap": self.recap,
            "make": make,
            "pip": pip,
            "export": export,
            "torchrun": torchrun,
            "python": python,
            "curl": self.web.curl,
        }

    def run(self, command: Command) -> str | None:
        """What the commands of a line print, or None where they were only parsed."""
        printed: list[str | None] = []
        text = self.web.filled(command.text)
        for words in Command(command.place, text).parts():
            if words[0] not in self.known:
                raise AssertionError(
                    f"{command.place}: nobody knows how to test {words[0]!r}; known are {', '.join(self.known)}; "
                    f"say in tests/docs/programs.py what is to be done with it"
                )
            try:
                known = self.known[words[0]]
                printed.append(self.recap(words, bool(command.printed)) if known == self.recap else known(words))
            except (ValueError, AssertionError) as error:
                raise AssertionError(f"{command.place}: `{' '.join(words)}`: {error}") from error
        return printed[-1]

    def recap(self, words: list[str], shown: bool = False) -> str | None:
        name = words[1] if len(words) > 1 else ""
        args = parsed(words[1:])
        if name not in RUN or ANYTHING in words or not installed(name):
            return None
        out, err = io.StringIO(), io.StringIO()
        serving = self.web.started() if name in SERVERS else contextlib.nullcontext()
        given = [*words[1:], "--port", "0"] if name in SERVERS and "--port" not in words else words[1:]
        small = contextlib.nullcontext() if name in FULL_SIZE else self.small()
        with small, serving, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(smaller.command(given, fewer=not shown))
        if status:
            raise AssertionError(f"it ends with status {status}: {err.getvalue().strip().splitlines()[-1]}")
        return self.web.as_printed(out.getvalue(), args) if name in SERVERS else out.getvalue()


def parsed(words: list[str]) -> argparse.Namespace:
    """The arguments that the command line makes of words, its models and schedules looked at too."""
    args = read(parser(), [word for word in words if word != ANYTHING])
    models = listed(getattr(args, "model", None))
    if args.command == "verify" and ":" in "".join(models):
        return args
    for model in models:
        if locate(model) is None:
            size_name(model)
    for text in [*listed(getattr(args, "schedule", None)), *listed(getattr(args, "repeat", None))]:
        SamplingOptions.from_text(text)
    return args


def listed(given: object) -> list[str]:
    """What an option was given, as a list, numbers left out."""
    return [given] if isinstance(given, str) else given if isinstance(given, list) else []


def installed(name: str) -> bool:
    return all(map(importlib.util.find_spec, NEEDED.get(name, ())))


def read(options: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parsed arguments; argparse's complaint as an error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return options.parse_args(words)
    except SystemExit as end:
        if end.code == 0:  # --help
            return argparse.Namespace(command="help")
        raise AssertionError(said.getvalue().strip().splitlines()[-1]) from end


def make(words: list[str]) -> None:
    """Targets that the Makefile has."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for target in words[1:]:
        assert target in targets, f"the Makefile has no target {target!r}; it has {', '.join(sorted(targets))}"


def pip(words: list[str]) -> None:
    """Extras that the package has, and other packages in the versions that it asks for itself."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = about["optional-dependencies"]
    for word in words[2:]:
        if word.startswith("-") or word == ".":
            continue
        wanted = Requirement(word)
        if wanted.name == about["name"]:
            missing = wanted.extras - set(extras)
            assert not missing, f"there is no extra {', '.join(missing)}; there are {', '.join(extras)}"
        pins = re.findall(rf"\b{re.escape(wanted.name)}==[\w.]+", f"{extras} {(ROOT / 'Makefile').read_text()}")
        assert not wanted.specifier or not pins or word in pins, f"{word} is {', '.join(pins)} elsewhere"


def export(words: list[str]) -> None:
    """Variables that something reads."""
    sources = [path for folder in ("src", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    for name in (word.partition("=")[0] for word in words[1:]):
        assert any(name in path.read_text() for path in sources), f"nothing in src or benchmarks reads {name}"


def torchrun(words: list[str]) -> None:
    """The launcher's own parser, and ours for what it launches."""
    from torch.distributed.run import get_args_parser

    launched = read(get_args_parser(), words[1:])
    assert launched.module, "torchrun is not told -m, so it would look for a file"
    assert launched.training_script == "recap", f"torchrun would start {launched.training_script!r}, not recap"
    parsed(launched.training_script_args)


def python(words: list[str]) -> str | None:
    """Examples are run, benchmarks parsed; other modules have to be there."""
    if words[1] == "-m":
        name, rest = words[2], words[3:]
    else:
        path = Path(words[1])
        assert (ROOT / path).is_file(), f"there is no {path}"
        name, rest = ".".join(path.with_suffix("").parts), words[2:]
    folder, _, script = name.partition(".")
    if folder not in ("benchmarks", "examples"):
        assert importlib.util.find_spec(name), f"there is no module {name}"
        return None
    module = importlib.import_module(name)
    read(module.parser(), rest)
    if folder == "benchmarks" or not installed(script):
        return None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        module.main(rest)
    return out.getvalue()
