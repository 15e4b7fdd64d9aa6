"""The notebook for newcomers: it runs from top to bottom, and what is stored of it is what it prints today."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
QUICKSTART = NOTEBOOKS / "quickstart.ipynb"
MAX_BYTES = 300_000
ELSEWHERE = re.compile(r"/(?:home|root|Users|tmp|work|usr|opt|mnt)/|site-packages|[A-Z]:\\\\|localhost|127\.0\.0\.1")
Cell = dict[str, Any]


def cells(path: Path, kind: str = "code") -> list[Cell]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


def form(output: Cell) -> tuple[Any, ...]:
    """What an output is like, without what differs from run to run and from machine to machine."""
    if output["output_type"] == "stream":
        return ("stream", output["name"], text(output["text"]).count("\n"))
    plain = text(output["data"]["text/plain"])
    shown = re.sub(r"[\d.]+", "0", plain) if plain.startswith("<") else plain[:7]
    return (output["output_type"], sorted(output["data"]), shown)


def check_outputs(code: list[Cell]) -> None:
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        kinds = [output["output_type"] for output in cell["outputs"]]
        assert set(kinds) <= {"stream", "display_data", "execute_result"}, kinds
        assert all(output.get("name") != "stderr" for output in cell["outputs"]), cell["outputs"]


def test_what_is_stored_is_small_whole_and_of_no_machine() -> None:
    assert QUICKSTART.stat().st_size <= MAX_BYTES
    assert not ELSEWHERE.search(QUICKSTART.read_text())
    code = cells(QUICKSTART)
    check_outputs(code)
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"]) >= 6
    assert max(len(line) for cell in code for line in text(cell["source"]).splitlines()) <= 104
    assert set(json.loads(QUICKSTART.read_text())["metadata"]) == {"kernelspec", "language_info"}


def test_links_of_the_notebook_lead_somewhere() -> None:
    prose = "\n".join(text(cell["source"]) for cell in cells(QUICKSTART, "markdown"))
    links = re.findall(r"\]\(([^)]+)\)", prose)
    assert len(links) > 5
    assert [link for link in links if not (NOTEBOOKS / link).is_file()] == []


@pytest.mark.xdist_group("notebook")
def test_the_notebook_runs_as_it_is_stored(tmp_path: Path) -> None:
    """In a kernel of its own, in an empty folder, with one thread, and with warnings as errors."""
    places = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    done = subprocess.run(
        [sys.executable, str(NOTEBOOKS / "execute.py"), "--into", str(tmp_path)],
        env={**os.environ, **places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    fresh, stored = cells(tmp_path / QUICKSTART.name), cells(QUICKSTART)
    check_outputs(fresh)
    assert [cell["source"] for cell in fresh] == [cell["source"] for cell in stored]
    for ours, theirs in zip(fresh, stored, strict=True):
        assert list(map(form, ours["outputs"])) == list(map(form, theirs["outputs"])), text(ours["source"])
