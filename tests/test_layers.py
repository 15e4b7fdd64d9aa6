"""The packages of the library: who imports whom, how large a file is, and that nothing stands there twice."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "recap"
# from low to high: a package imports from lower lines alone
LAYERS = (
    ("core",),
    ("tokenizers",),
    ("models",),
    ("engine", "checkpoints"),
    ("weights", "view"),
    ("planning",),
    ("runs",),
    ("pipelines",),
    ("bench", "evaluation", "verification", "training", "tuning"),
    ("server",),
    ("cli",),
)
LEVEL = {package: level for level, packages in enumerate(LAYERS) for package in packages}
SIDE_BY_SIDE = {
    "bench",
    "evaluation",
    "verification",
    "tuning",
}  # of one level, and may import each other without cycles
MAX_LINES = 350
MAX_EQUAL = 7  # lines that may stand in two packages
# classes and functions that have better names by now
RETIRED = {"Arena", "Audience", "Cell", "Contract", "Edited", "Fitting", "Foreseen", "Law", "Recorder", "Refused"}
RETIRED |= {"Sampling", "Setting", "Shelf", "Ticket", "UnsoundError", "Wish", "heed", "stoppable", "written_whole"}
PARTS = {"Attention", "Block", "Encoder", "ResBlock"}
Files = dict[str, str]  # text by path below the package, such as "core/decode.py"


def sources(*endings: str) -> Files:
    """The files of the package that end so."""
    found = sorted(path for path in SOURCE.rglob("*") if path.suffix in endings)
    return {path.relative_to(SOURCE).as_posix(): path.read_text() for path in found}


def package_of(place: str) -> str:
    """The package that a file belongs to; "" for modules beside the packages."""
    return place.partition("/")[0] if "/" in place else ""


def imports(place: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports when it runs, inside of functions too."""
    package = ["recap", *place.split("/")[:-1]]
    tree = ast.parse(text)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((node.lineno, name) for name in names if name != "recap")
            if "recap" in names:
                yield from ((line, f"recap.{name}") for line, name in attributes(tree, "recap"))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def attributes(tree: ast.AST, name: str) -> Iterator[tuple[int, str]]:
    """Line and name of what is read as `name.something`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            yield node.lineno, node.attr


def arrows(files: Files) -> dict[tuple[str, str], list[str]]:
    """From package to package, where a file of the first imports from the second."""
    packages = {package_of(place) for place in files} | set(LEVEL)
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place, text in files.items():
        for line, name in imports(place, text):
            parts = name.split(".")
            if parts[0] != "recap" or parts[1:] == ["__version__"]:
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in packages else ""
            if target != package_of(place):
                found[package_of(place), target].append(f"{place}:{line} imports {name}")
    return found


def wrong_arrows(files: Files) -> list[str]:
    """What imports against the layers, in words."""
    wrong = []
    for (start, end), places in arrows(files).items():
        if start == "":  # what is beside the packages stands above them
            continue
        if start not in LEVEL:
            reason = f"{start} is none of the packages of tests/test_layers.py"
        elif end == "":
            reason = f"{start} imports a public name; import it from the package where it is written"
        elif end not in LEVEL:
            reason = f"{end} is none of the packages of tests/test_layers.py"
        elif end == "training" and start != "cli":
            reason = f"{start} imports training, which is for the command line alone"
        elif LEVEL[end] < LEVEL[start] or {start, end} <= SIDE_BY_SIDE:
            continue
        else:
            reason = f"{start} must not import {end}, which is not below it"
        wrong += [f"{place}: {reason}" for place in places]
    return sorted(set(wrong))


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Packages that import each other in a ring, if there are any."""

    def walk(path: list[str]) -> list[str]:
        for following in sorted(graph.get(path[-1], ())):
            if following in path:
                return [*path[path.index(following) :], following]
            if ring := walk([*path, following]):
                return ring
        return []

    return next((ring for start in sorted(graph) if (ring := walk([start]))), [])


def code_lines(text: str) -> list[tuple[int, str]]:
    """Number and content of the lines that are neither blank nor imports."""
    skipped = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return [(number, line) for number, line in lines if line and number not in skipped]


def repeated(files: Files, most: int = MAX_EQUAL) -> list[str]:
    """Runs of more than `most` equal lines in different packages."""
    length = most + 1
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for place, text in files.items():
        lines = code_lines(text)
        for first in range(len(lines) - most):
            part = lines[first : first + length]
            windows[tuple(line for _, line in part)].append((place, part[0][0]))
    pairs: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for places in windows.values():
        for index, (one, line) in enumerate(places):
            for other, twin in places[index + 1 :]:
                if package_of(one) != package_of(other):
                    pairs[one, other].append((line, twin))
    return [
        f"{one}:{min(found)[0]} and {other}:{min(found)[1]} have {len(found) + most} or so equal lines"
        for (one, other), found in sorted(pairs.items())
    ]


def defined(text: str) -> Iterator[tuple[int, str]]:
    """Classes and functions, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def listed(wrong: Sequence[str]) -> str:
    return "\n" + "\n".join(wrong)


def test_imports_point_to_lower_layers_alone() -> None:
    wrong = wrong_arrows(sources(".py"))
    assert not wrong, listed(wrong)


def test_packages_do_not_import_each_other_in_a_ring() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    found = arrows(sources(".py"))
    for start, end in found:
        if start and end:
            graph[start].add(end)
    ring = cycle(graph)
    assert not ring, listed([" -> ".join(ring), *(place for pair in pairwise(ring) for place in found[pair])])


def test_every_package_has_a_layer() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders == set(LEVEL), f"these differ from the layers above: {sorted(folders ^ set(LEVEL))}"


def test_core_needs_torch_alone() -> None:
    known = {"torch", "recap", "__future__", *sys.stdlib_module_names}
    wrong = [
        f"{place}:{line} imports {name}"
        for place, text in sources(".py").items()
        if package_of(place) == "core"
        for line, name in imports(place, text)
        if name.partition(".")[0] not in known
    ]
    assert not wrong, listed(wrong)


def test_the_tree_in_readme_is_the_real_one() -> None:
    block = (ROOT / "README.md").read_text().split("src/recap/\n")[1].split("```")[0]
    assert {line.split("/")[0].strip() for line in block.splitlines()} == set(LEVEL)


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("a rule for which tokens to unmask", "core/selection.py"),
        ("a family", "models/registry.py"),
        ("an HTTP field", "server/schema.py"),
        ("a metric", "evaluation/metrics.py"),
        ("an engine", "engine/__init__.py"),
    ],
)
def test_contributing_says_which_file_to_open(wanted: str, place: str) -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert place in dict(rows)[wanted]
    named = {path for _, text in rows for path in re.findall(r"`(\w+/[\w/]*\w\.py|\w+/[\w/]*/)`", text)}
    missing = [
        path for path in named if "NAME" not in path and not any((base / path).exists() for base in (ROOT, SOURCE))
    ]
    assert not missing


def test_files_are_short() -> None:
    counts = {place: len(text.splitlines()) for place, text in sources(".py", ".js", ".css", ".html").items()}
    long = [f"{place} has {count} lines; {MAX_LINES} at most" for place, count in counts.items() if count > MAX_LINES]
    assert not long, listed(long)


def test_nothing_is_written_in_two_packages() -> None:
    found = repeated(sources(".py"))
    assert not found, listed(found)


def test_a_name_has_one_meaning() -> None:
    """Classes and names of types, but for parts of networks, which are called alike in every network."""
    found: dict[str, list[str]] = defaultdict(list)
    for place, text in sources(".py").items():
        for node in ast.parse(text).body:
            names = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in names:
                if not name.isupper() and name[0].isupper() and name not in PARTS:
                    found[name].append(place)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_names_that_were_replaced_do_not_come_back() -> None:
    wrong = [
        f"{place}:{line} defines {name}, a name that was replaced (see docs/changelog.md)"
        for place, text in sources(".py").items()
        for line, name in defined(text)
        if name.lstrip("_") in RETIRED
    ]
    wrong += [f"{place}: a file of utilities; say what it is for" for place in sources(".py") if "util" in place]
    assert not wrong, listed(wrong)


@pytest.mark.parametrize(
    ("place", "text", "words"),
    [
        ("core/x.py", "from recap.models import Adapter", "core must not import models"),
        ("runs/x.py", "def f():\n    from recap.pipelines import load", "runs/x.py:2 imports recap.pipelines.load"),
        ("models/mar/x.py", "from ...engine.graphs import y", "models must not import engine"),
        ("engine/x.py", "import recap.checkpoints", "engine must not import checkpoints"),
        ("evaluation/x.py", "from recap.training import data", "for the command line alone"),
        ("server/x.py", "from recap import Pipeline", "imports a public name"),
        ("server/x.py", "import recap\nrecap.load(1)", "imports a public name"),
        ("server/x.py", "from recap import cli", "server must not import cli"),
        ("other/x.py", "import recap.core.decode", "other is none of the packages"),
    ],
)
def test_arrows_against_the_layers_are_seen(place: str, text: str, words: str) -> None:
    assert any(words in line for line in wrong_arrows({place: text}))


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("runs/x.py", "if TYPE_CHECKING:\n    from recap.pipelines import Pipeline"),
        ("runs/x.py", "from recap import __version__\nfrom . import files"),
        ("runs/x.py", "import recap\nprint(recap.__version__)"),
        ("evaluation/x.py", "from recap.bench import timing"),
        ("cli/x.py", "from recap.training import data\nfrom recap.server import app\nimport numpy"),
        ("__main__.py", "from recap.cli import main"),
    ],
)
def test_arrows_with_the_layers_are_allowed(place: str, text: str) -> None:
    assert wrong_arrows({place: text}) == []


def test_rings_and_equal_lines_are_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}}) == []
    body = "\n".join(f"x{n} = {n}" for n in range(8))
    twice = {
        "core/a.py": f"import os\n\n{body}\n",
        "runs/b.py": f"y = 1\nif y:\n    {'    '.join(body.splitlines(True))}",
    }
    assert repeated(twice) == ["core/a.py:3 and runs/b.py:3 have 8 or so equal lines"]
    assert repeated({"core/a.py": body, "core/b.py": body}) == []
    assert repeated({"core/a.py": body, "runs/b.py": body.replace("x3", "z3")}) == []
