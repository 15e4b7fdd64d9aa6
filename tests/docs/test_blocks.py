"""Every fenced block of README, the pages and the cards does what it says."""

from __future__ import annotations

import pytest

from tests.docs.blocks import ROOT, Block, blocks, pages
from tests.docs.conftest import Reading

# the blocks of a page go to one worker, one after another
ALL = [
    pytest.param(block, marks=pytest.mark.xdist_group(str(page)), id=block.place)
    for page in pages()
    for block in blocks(page)
]


@pytest.mark.parametrize("block", ALL)
def test_block(block: Block, reading: Reading) -> None:
    reading(block.page).run(block)


def test_pages_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in pages()}
    assert {"README.md", "CONTRIBUTING.md", "docs/editing.md", "src/recap/weights/flowers-mar/README.md"} <= names
    kinds = {param.values[0].language for param in ALL}  # type: ignore[union-attr]
    assert {"python", "console", "text"} <= kinds
