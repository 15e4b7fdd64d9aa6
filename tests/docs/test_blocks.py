"""Every fenced block of README, the pages and the cards does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import recap
from tests.docs.blocks import COMMANDS, PYTHON, ROOT, Block, blocks, check, pages
from tests.docs.conftest import Reading

DOCS = ROOT / "docs"


def group(page: Path) -> pytest.MarkDecorator:
    """The blocks of a page go to one worker, one after another."""
    return pytest.mark.xdist_group(str(page.relative_to(ROOT)))


ALL = [pytest.param(block, marks=group(page), id=block.place) for page in pages() for block in blocks(page)]


@pytest.mark.parametrize("block", ALL)
def test_block(block: Block, reading: Reading) -> None:
    check(block)
    if block.language in (*PYTHON, *COMMANDS):
        reading(block.page).run(block)


def test_pages_are_found() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in pages()}
    assert {"README.md", "CONTRIBUTING.md", "docs/editing.md", "src/recap/weights/flowers-mar/README.md"} <= names
    kinds = {param.values[0].language for param in ALL}  # type: ignore[union-attr]
    assert {"python", "console", "text"} <= kinds


@group(DOCS / "plug-in.md")
def test_plugging_in_ends_with_an_adapter_of_two_methods(reading: Reading) -> None:
    space = reading(DOCS / "plug-in.md").finish().space
    assert isinstance(space["adapter"], recap.Adapter)
    assert space["latents"].shape == (2, 16, 4)
    assert recap.Adapter.__abstractmethods__ == {"full", "local"}


@group(DOCS / "editing.md")
def test_editing_makes_the_pictures_that_it_shows(reading: Reading) -> None:
    done = reading(DOCS / "editing.md").finish()
    for name in ("centre", "half", "around", "class"):
        with Image.open(done.folder / name / "strip.png") as made, Image.open(DOCS / f"editing/{name}.jpg") as shown:
            assert made.width / made.height == pytest.approx(shown.width / shown.height, rel=0.01)
            assert shown.width > 500
    assert (done.folder / "half_lotus.png").is_file()
    assert done.space["canvas"].decoded == 256


@group(DOCS / "quickstart.md")
def test_the_quick_start_draws_the_picture_that_it_shows(reading: Reading) -> None:
    done = reading(DOCS / "quickstart.md").finish()
    with Image.open(done.folder / "frames.png") as made, Image.open(DOCS / "quickstart.jpg") as shown:
        assert made.size == shown.size
