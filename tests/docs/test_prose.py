"""What pages say between their blocks holds too: links lead somewhere, and what is named is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages
from tests.docs.prose import anchors, check_link, check_span, links, spans

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]
TODAY = [param for param in PAGES if param.id != "docs/changelog.md"]  # it speaks of names that are gone


def wrong(found: Iterable[tuple[str, str]], check: Callable[[str], None]) -> Iterator[str]:
    for place, said in found:
        try:
            check(said)
        except AssertionError as error:
            yield f"{place}: `{said}`: {error}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(wrong(links(page), partial(check_link, page))) == []


@pytest.mark.parametrize("page", TODAY)
def test_what_is_named_is_there(page: Path) -> None:
    assert list(wrong(spans(page), check_span)) == []


LINKS = {
    "docs/nowhere.md": "not there",
    "docs/concepts.md#nothing": "no heading for #nothing",
    "#nothing": "no heading",
    "pyproject.toml#tools": "no headings",
    "htp:nowhere": "no address",
}
NAMED = {
    "recap smaple": "no command",
    "recap sample --nmu 4": "no --nmu",
    "--nmu 4": "no command has --nmu",
    "make tset": "no target",
    "recap.nothing(model)": "no recap.nothing",
    "recap.core.nothing": "no recap.core.nothing",
    "tests/nowhere": "no tests/nowhere",
    "core/nowhere.py": "no core/nowhere.py",
    "test_of_nothing": "no test_of_nothing",
    "python benchmarks/scaling.py --nmu 4": "no --nmu",
}
GOOD = ("recap.pipelines.editing.variation", "recap sample ...", "--chain", "make test", "any `thing", "tests/docs")


@pytest.mark.parametrize("target", LINKS)
def test_links_that_lead_nowhere(target: str) -> None:
    with pytest.raises(AssertionError, match=LINKS[target]):
        check_link(ROOT / "README.md", target)


@pytest.mark.parametrize("code", NAMED)
def test_what_is_named_and_is_not_there(code: str) -> None:
    with pytest.raises(AssertionError, match=NAMED[code]):
        check_span(code)


def test_what_is_there_is_found() -> None:
    check_link(ROOT / "README.md", "docs/concepts.md#words")
    check_link(ROOT / "README.md", "docs/performance")
    for code in (*GOOD, "core/decode.py", "examples/antibodies.py"):
        check_span(code)


def test_links_are_found_outside_of_code_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `two`: three\n\n`[no](x.md)` [yes](y.md#z)\n\n```text\n[no](x.md)\n```\n\n# One\n# One\n")
    assert list(links(page)) == [("page.md:3", "y.md#z")]
    assert anchors(page) == {"one-two-three", "one", "one-1"}
