"""The site: it builds without a warning, loads nothing from elsewhere, and leaves nothing out."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the extra docs is not installed")

import recap
from tests.docs.blocks import ROOT, pages
from tests.docs.prose import subcommands

pytestmark = pytest.mark.xdist_group("site")
DOCS = ROOT / "docs"
LOADED = dict.fromkeys(("script", "img", "iframe", "source", "video", "audio", "embed"), "src")
LINKED = ("stylesheet", "preload", "modulepreload", "icon", "shortcut icon", "manifest", "preconnect", "dns-prefetch")


class Assets(HTMLParser):
    """What a page loads by itself, and where it leads to within the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.leads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag in LOADED and LOADED[tag] in found:
            self.loaded.append(found[LOADED[tag]])
        if "srcset" in found:
            self.loaded += [part.split()[0] for part in found["srcset"].split(",")]
        if tag == "link" and found.get("rel", "").lower() in LINKED:
            self.loaded.append(found["href"])
        if tag == "object":
            self.loaded.append(found.get("data", ""))
        if tag == "a":
            self.leads.add(found.get("href", "").partition("#")[0])


def elsewhere(text: str) -> list[str]:
    """What HTML loads from other places."""
    return [asset for asset in Assets(text).loaded if re.match(r"(https?:)?//", asset)]


def imported(style: str) -> list[str]:
    """What a style sheet loads from other places."""
    style = re.sub(r"/\*.*?\*/", "", style, flags=re.S)
    return re.findall(r"(?:url\(\s*|@import\s+)['\"]?((?:https?:)?//[^'\")\s]+)", style)


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


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    html = sorted(site.rglob("*.html"))
    assert len(html) > 15
    assert {str(path): found for path in html if (found := elsewhere(path.read_text()))} == {}
    styles = sorted(site.rglob("*.css"))
    assert styles
    assert {str(path): found for path in styles if (found := imported(path.read_text()))} == {}


def test_what_is_loaded_is_there(site: Path) -> None:
    for path in site.rglob("*.html"):
        for asset in Assets(path.read_text()).loaded:
            assert asset.startswith("data:") or (path.parent / asset.partition("?")[0]).is_file(), (path, asset)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img src="http://example/x.png">',
        '<img srcset="x.png 1x, https://example/y.png 2x">',
    ],
)
def test_assets_from_elsewhere_are_seen(text: str) -> None:
    assert len(elsewhere(f"<html><head>{text}</head></html>")) == 1
    assert elsewhere('<a href="https://example/">there</a><img src="x.png">') == []
    assert imported("@import 'https://example/x.css'; a { background: url(//example/y.png) } /* url(//no) */") != []


def test_every_page_is_in_the_table_of_contents(site: Path) -> None:
    named = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in pages() if path.is_relative_to(DOCS)}
    named |= {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.glob("notebooks/*.ipynb")}
    named -= {"results/findings.html"}  # a part of results.md
    leads = Assets((site / "index.html").read_text()).leads
    assert named - leads - {"index.html"} == set()
    assert all((site / name).is_file() for name in named)


def test_every_public_name_is_explained(site: Path) -> None:
    text = (site / "api.html").read_text()
    assert [name for name in recap.__all__ if f'id="recap.{name}"' not in text] == []
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


def test_search_knows_the_pages(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "concepts" in index
    assert "grouped_decode" in index
