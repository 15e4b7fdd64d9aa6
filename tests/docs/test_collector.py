"""The tests of pages can fail: a made-up page with a broken block of each kind is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import blocks, commands
from tests.docs.session import Session

BROKEN = {
    "a language that nobody would look at": ("pyhton", "x = 1", "nobody knows how to test a block"),
    "a block for Sphinx outside of the site": ("{eval-rst}", "x", "nobody knows how to test a block"),
    "no JSON": ("json", '{"seed": 7,}', "this is no JSON"),
    "no citation": ("bibtex", "@article{x", "no entry of a bibliography"),
    "nothing": ("text", " ", "the block is empty"),
    "an unknown name": ("python", "print(nothing_of_the_kind)", "no block before it defines that"),
    "an error": ("python", "assert 1 + 1 == 3, 'sums'", "AssertionError: sums"),
    "a syntax error": ("python", "print(", "never closed"),
    "a GPU is asked for otherwise": ("python", "import torch\ntorch.empty(1, device='cuda:0')", "Error"),
    "no prompt": ("console", "recap models", "put '$ ' before commands"),
    "an unknown command": ("console", "$ recap smaple --num 4", "invalid choice: 'smaple'"),
    "an unknown option": ("console", "$ recap sample --nmu 4", "unrecognized arguments: --nmu 4"),
    "an unknown model": ("console", "$ recap bench --model mar-larg --schedule 8", "did you mean 'mar-large'"),
    "a schedule that there is not": (
        "console",
        "$ recap sweep --model flowers-mar --schedule 8+9:chain=1",
        "have no room",
    ),
    "a file that is not there": ("console", "$ recap edit --image nowhere.png --keep left --labels rose", "nowhere"),
    "other output": ("console", "$ recap sample --schedule 2 --out x\n4 images with 2+1", "but what is printed"),
    "an unknown extra": ("console", '$ pip install "recap-mgm[evla]"', "no extra evla"),
    "another version": ("console", "$ pip install --no-deps antiberty==0.1.2", "antiberty==0.1.3 elsewhere"),
    "an unknown variable": ("console", "$ export RECAP_OHTERS=others", "nothing in src or benchmarks reads"),
    "an unknown script": ("console", "$ python benchmarks/nowhere.py", "there is no benchmarks/nowhere.py"),
    "no bars before recap": ("console", "$ torchrun --nproc-per-node 2 -m recap sample --num 4", "--num"),
    "an unknown program": ("console", "$ nvidia-smi", "nobody knows how to test 'nvidia-smi'"),
    "no server": ("console", "$ curl localhost:8000/v1/models", "no `recap serve` or `recap studio` comes before"),
    "an unknown field": (
        "console",
        "$ recap serve --model flowers-maskgit\n"
        """$ curl localhost:8000/v1/sample -H 'Content-Type: application/json' -d '{"sede": 7}'""",
        "the answer is 422",
    ),
    "a broken line for a shell": ("bash", "recap models --jsno", "--jsno"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found_out(what: str, home: Path, tmp_path: Path) -> None:
    language, code, words = BROKEN[what]
    page = written(tmp_path, f"# Page\n\n```{language}\n{code}\n```\n")
    (block,) = blocks(page)
    with pytest.raises((AssertionError, SyntaxError)) as failure:
        Session(page, folder(tmp_path), home).run(block)
    assert words in str(failure.value)
    assert "page.md" in str(failure.value)


def test_what_python_prints_is_compared(home: Path, tmp_path: Path) -> None:
    text = "```python\nprint('took', 1.25, 's for', 3)\n```\n\n```text\ntook 0.5 s for {}\n```\n"
    page = written(tmp_path, text.format(3))
    Session(page, folder(tmp_path), home).finish()  # what is measured may differ
    page = written(tmp_path, text.format(4))
    with pytest.raises(AssertionError, match=r"took 0\.5 s for 4\n\nbut what is printed is\ntook 1\.25 s for 3"):
        Session(page, folder(tmp_path, "again"), home).finish()


def test_a_failure_stops_its_page_and_says_so(home: Path, tmp_path: Path) -> None:
    page = written(tmp_path, "```python\nx = 1\n```\n```python\ny = nothing\n```\n```python\nz = 3\n```\n")
    first, second, third = blocks(page)
    reader = Session(page, folder(tmp_path), home)
    reader.run(first)
    with pytest.raises(AssertionError, match=r"page\.md:5: name 'nothing'"):
        reader.run(second)
    with pytest.raises(AssertionError, match=r"page\.md:8 was not reached: page\.md:5"):
        reader.run(third)
    assert "z" not in reader.space


def test_a_fence_that_is_never_closed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: a fenced block is never closed"):
        blocks(written(tmp_path, "text\n```python\nx = 1\n"))


def test_blocks_in_lists_tildes_and_continued_lines(tmp_path: Path) -> None:
    text = "- item\n\n  ~~~console\n  $ recap sample \\\n      --num 4   # few\n  four\n\n  $ make test\n  ~~~\n"
    (block,) = blocks(written(tmp_path, text))
    first, second = commands(block)
    assert list(first.parts()) == [["recap", "sample", "--num", "4"]]
    assert (first.printed.strip(), first.place, second.place) == ("four", "page.md:4", "page.md:8")


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def folder(place: Path, name: str = "reader") -> Path:
    made = place / name
    made.mkdir()
    return made
