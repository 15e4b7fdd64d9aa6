"""The page on editing does what it says."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from recap.cli import main, parser

DOCS = Path(__file__).parents[1] / "docs"
EDITING = DOCS / "editing.md"


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """What follows the prompts of a page."""
    return [line.removeprefix("$ ") for block in blocks(page, "console") for line in block.splitlines()]


def test_pictures_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", EDITING.read_text())
    assert len(shown) == 4
    for name in shown:
        assert (DOCS / name).stat().st_size < 300_000
        with Image.open(DOCS / name) as picture:
            assert picture.width > 500


def test_other_commands_are_understood() -> None:
    (block,) = blocks(EDITING, "bash")
    for line in block.splitlines():
        name, *rest = shlex.split(line)
        assert name == "recap"
        assert parser().parse_args(rest).command == "edit"


@pytest.mark.slow
def test_commands_of_the_page_on_editing_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands(EDITING)
    assert len(lines) == 5
    for line in lines:
        name, *rest = shlex.split(line)
        assert name == "recap"
        assert main(rest) == 0
    for page in ("centre", "half", "around", "class"):
        with Image.open(tmp_path / page / "strip.png") as made, Image.open(DOCS / "editing" / f"{page}.jpg") as shown:
            assert made.width / made.height == pytest.approx(shown.width / shown.height, rel=0.01)


@pytest.mark.slow
def test_python_of_the_page_on_editing_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run: Callable[..., None] = exec
    space: dict[str, object] = {}
    for block in blocks(EDITING, "python"):
        run(compile(block, str(EDITING), "exec"), space)
    assert (tmp_path / "half_lotus.png").is_file()
    assert space["canvas"].decoded == 256  # type: ignore[attr-defined]
