"""The site: it builds without a warning, loads nothing from elsewhere, and leaves nothing out."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the extra docs is not installed")

from recap import _public
from tests.docs.blocks import ROOT, pages
from tests.docs.prose import subcommands

pytestmark = pytest.mark.xdist_group("site")
DOCS = ROOT / "docs"
LOADED = re.compile(r"""<(?!a\b)\w+\b[^>]*?\b(?:src|srcset|href|data)=["']([^"']+)""")
IMPORTED = re.compile(r"""(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^'")\s]+)""")
COMMENT = re.compile(r"/\*.*?\*/", re.S)


def loaded(html: str) -> list[str]:
    """What a page loads by itself."""
    return [asset.strip().split()[0] for found in LOADED.findall(html) for asset in found.split(", ")]


def elsewhere(text: str) -> list[str]:
    """What HTML or a style sheet loads from other places."""
    assets = loaded(text) + IMPORTED.findall(COMMENT.sub("", text))
    return [asset for asset in assets if re.match(r"(https?:)?//", asset)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does it, in a folder of its own."""
    out = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-n", "-q", "-b", "html", "-d", str(out / "doctrees")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(out / "html")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "", done.stderr
    return out / "html"


def test_make_docs_builds_the_same_way() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
    assert "sphinx -W --keep-going -n -q -b html docs docs/_build/html" in recipe


def test_what_is_loaded_is_there_and_nothing_comes_from_elsewhere(site: Path) -> None:
    html, styles = sorted(site.rglob("*.html")), sorted(site.rglob("*.css"))
    assert len(html) > 15
    assert styles
    assert {str(path): found for path in (*html, *styles) if (found := elsewhere(path.read_text()))} == {}
    for path in html:
        for asset in loaded(path.read_text()):
            there = path.parent / re.split("[?#]", asset)[0]
            assert asset.startswith(("data:", "#")) or there.is_file(), (path, asset)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<script src="https://cdn.example/x.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', 1),
        ("<img src='http://example/x.png'>", 1),
        ('<img srcset="x.png 1x, https://example/y.png 2x">', 1),
        ('<a href="https://example/">there</a><img src="x.png">', 0),
        ("@import 'https://example/x.css'; a { background: url(//example/y.png) } /* url(//no) */", 2),
    ],
)
def test_assets_from_elsewhere_are_seen(text: str, count: int) -> None:
    assert len(elsewhere(text)) == count


def test_every_page_is_in_the_table_of_contents(site: Path) -> None:
    named = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in pages() if path.is_relative_to(DOCS)}
    named |= {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.glob("notebooks/*.ipynb")}
    named -= {"results/findings.html"}  # a part of results.md
    leads = set(re.findall(r'<a\b[^>]*?href="([^"#]+)', (site / "index.html").read_text()))
    assert named - leads - {"index.html"} == set()
    assert all((site / name).is_file() for name in named)


def test_every_public_name_is_explained(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert [name for name in _public.__all__ if f'id="recap.{name}"' not in text] == []
    assert "``" not in re.sub(r"<[^>]+>", "", text)  # no markup is left standing


def test_every_option_of_every_command_is_there(site: Path) -> None:
    text = (site / "commands.html").read_text()
    count = 0
    for name, command in subcommands().items():
        assert f'id="recap-{name}"' in text
        for action in command._actions:
            if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                assert action.help, (name, action.dest)
                for flag in action.option_strings:
                    assert f'id="cmdoption-recap-{name}-{flag.strip("-")}"' in text, (name, flag)
                    count += 1
    assert count > 100
