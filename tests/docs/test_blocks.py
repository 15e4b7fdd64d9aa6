"""Every fenced block of README, the pages and the cards does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import recap
from tests.docs.blocks import ROOT, Block, blocks, pages
from tests.docs.conftest import Reading


def group(page: Path) -> pytest.MarkDecorator:
    """The blocks of a page go to one worker, one after another."""
    return pytest.mark.xdist_group(str(page.relative_to(ROOT)))


ALL = [pytest.param(block, marks=group(page), id=block.place) for page in pages() for block in blocks(page)]


@pytest.mark.parametrize("block", ALL)
def test_block(block: Block, reading: Reading) -> None:
    reading(block.page).run(block)


def test_pages_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in pages()}
    assert {"README.md", "CONTRIBUTING.md", "docs/editing.md", "src/recap/weights/flowers-mar/README.md"} <= names
    kinds = {param.values[0].language for param in ALL}  # type: ignore[union-attr]
    assert {"python", "console", "text"} <= kinds


@group(ROOT / "docs/plug-in.md")
def test_plugging_in_ends_with_an_adapter_of_two_methods(reading: Reading) -> None:
    space = reading(ROOT / "docs/plug-in.md").finish().space
    assert isinstance(space["adapter"], recap.Adapter)
    assert space["latents"].shape == (2, 16, 4)
    assert recap.Adapter.__abstractmethods__ == {"full", "local"}
