"""The tests of pages can fail: a made-up page with a broken block of each kind is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from recap.cli import COMMANDS
from tests.docs.blocks import blocks, check, commands
from tests.docs.programs import RUN
from tests.docs.session import Session

BROKEN = {
    "an unknown name": ("python", "print(nothing_of_the_kind)", "no block before it defines that"),
    "an error": ("python", "assert 1 + 1 == 3, 'sums'", "AssertionError: sums"),
    "a syntax error": ("python", "print(", "never closed"),
    "a GPU is asked for otherwise": ("python", "import torch\ntorch.empty(1, device='cuda:0')", "Error"),
    "no prompt": ("console", "recap models", "put '$ ' before commands"),
    "an unknown command": ("console", "$ recap smaple --num 4", "invalid choice: 'smaple'"),
    "an unknown option": ("console", "$ recap sample --nmu 4", "unrecognized arguments: --nmu 4"),
    "an unknown model": ("console", "$ recap bench --model mar-larg --schedule 8", "did you mean 'mar-large'"),
    "an unknown class": ("console", "$ recap sample --labels snuflower", "snuflower"),
    "a schedule that there is not": ("console", "$ recap sweep --model flowers-mar --schedule 8+9", "have no room"),
    "an unknown order": ("console", "$ recap sample --order sideways", "sideways"),
    "a file that is not there": ("console", "$ recap edit --image nowhere.png --keep left --labels rose", "nowhere"),
    "other output": ("console", "$ recap sample --schedule 2 --out x\n4 images with 2+1", "but what is printed"),
    "an unknown target": ("console", "$ make tset", "no target 'tset'"),
    "an unknown extra": ("console", '$ pip install "recap-mgm[evla]"', "no extra evla"),
    "another version": ("console", "$ pip install --no-deps antiberty==0.1.2", "antiberty==0.1.3 elsewhere"),
    "an unknown variable": ("console", "$ export RECAP_OHTERS=others", "nothing in src or benchmarks reads"),
    "an unknown script": ("console", "$ python benchmarks/nowhere.py", "there is no benchmarks/nowhere.py"),
    "an unknown option of a script": ("console", "$ python benchmarks/others.py --bacth 4 mar-l:8", "--bacth"),
    "an unknown module": ("console", "$ python -m nowhere", "no module nowhere"),
    "no bars before recap": ("console", "$ torchrun --nproc-per-node 2 -m recap sample --num 4", "--num"),
    "an unknown option behind torchrun": ("console", "$ torchrun -m -- recap sample --nmu 4", "--nmu"),
    "an unknown program": ("console", "$ nvidia-smi", "nobody knows how to test 'nvidia-smi'"),
    "no server": ("console", "$ curl localhost:8000/v1/models", "no `recap serve` or `recap studio` comes before"),
    "an unknown field": (
        "console",
        "$ recap serve --model flowers-maskgit\n"
        """$ curl localhost:8000/v1/sample -H 'Content-Type: application/json' -d '{"sede": 7}'""",
        "the answer is 422",
    ),
    "an unfinished quotation": ("console", "$ recap sample --labels 'rose", "no shell command"),
    "a broken line for a shell": ("bash", "recap models --jsno", "--jsno"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_found_out(what: str, home: Path, tmp_path: Path) -> None:
    language, code, words = BROKEN[what]
    page = written(tmp_path, f"# Page\n\n```{language}\n{code}\n```\n")
    (block,) = blocks(page)
    check(block)
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


@pytest.mark.parametrize("language", ["pyhton", "ruby", "{eval-rst}", "Python"])
def test_languages_that_nobody_would_look_at(language: str, tmp_path: Path) -> None:
    (block,) = blocks(written(tmp_path, f"````{language}\nputs 1\n```\n````\n"))
    assert block.code == "puts 1\n```\n"
    with pytest.raises(AssertionError, match="nobody knows how to test a block"):
        check(block)


@pytest.mark.parametrize(
    ("language", "code", "words"),
    [("json", '{"seed": 7,}', "no JSON"), ("bibtex", "@article{x", "bibliography"), ("text", " ", "empty")],
)
def test_what_is_not_run_is_looked_at(language: str, code: str, words: str, tmp_path: Path) -> None:
    (block,) = blocks(written(tmp_path, f"```{language}\n{code}\n```\n"))
    with pytest.raises(AssertionError, match=words):
        check(block)


def test_a_fence_that_is_never_closed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: a fenced block is never closed"):
        blocks(written(tmp_path, "text\n```python\nx = 1\n"))


def test_blocks_in_lists_tildes_and_continued_lines(tmp_path: Path) -> None:
    text = "- item\n\n  ~~~console\n  $ recap sample \\\n      --num 4   # few\n  four\n\n  $ make test\n  ~~~\n"
    (block,) = blocks(written(tmp_path, text))
    first, second = commands(block)
    assert list(first.parts()) == [["recap", "sample", "--num", "4"]]
    assert (first.printed.strip(), first.place, second.place) == ("four", "page.md:4", "page.md:8")


def test_what_is_run_are_commands() -> None:
    assert set(RUN) <= set(COMMANDS)


def written(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def folder(place: Path, name: str = "reader") -> Path:
    made = place / name
    made.mkdir()
    return made
