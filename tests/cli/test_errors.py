"""Errors at the command line: one line and an exit status, and the whole story with --debug."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recap import cli
from recap.cli import main, one_line, plan
from recap.pipelines import Pipeline

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *argv: str) -> str:
    """The line with which a command refuses its input."""
    try:
        status = main(argv)
    except SystemExit as stop:  # of argparse, which prints how the command is called before it
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    *usage, line = err.splitlines()
    assert (status, out) == (2, "")
    assert not usage or usage[0].startswith("usage: recap")
    assert line.startswith("recap")
    return line


REFUSED = {
    "": "arguments are required: COMMAND",
    "nonsense": "invalid choice: 'nonsense'",
    "plan --full many": "invalid int value: 'many'",
    "plan --memory much": "'much' is no size",
    "plan --full 8": "--model",
    "plan --warmup 2": "--model",
    "plan --preset mage": "--model",
    "plan --schedule 8+8": "--model",
    "plan --model mar-larg --full 8": "did you mean 'mar-large'",
    "plan --model nothing-like-it --full 8": "Published sizes: mar-base",
    "plan --model mar-large": "--full",
    "plan --model mar-large --local 4": "--full",
    "plan --model mar-large --full 8 --local 9": "local",
    "plan --model mar-large --full 8 --local 4 --warmup 9": "warmup",
    "plan --model mar-large --full 0": "full",
    "plan --model mar-large --full 300": "300",
    "plan --model mar-large --schedule 8+8 --full 3": "says full already",
    "plan --model mar-large --schedule 8+x": "cannot be read",
    "plan --model mage/tokenizer --full 8": "tokenizer",
    "verify": "arguments are required: MODEL",
    "verify maskgit --tiny": "--tiny",
    "verify mage-bas --tiny": "did you mean 'mage-base'",
    "verify .": "config.json",
    "verify mar-base --tiny --device warp": "warp",
    "sample --num x": "invalid int value: 'x'",
    "sample --batch 0": "take at least one image at a time",
    "bench --batch 1 99999999999999999999": "take at most 65536 images at a time",
    "sample --batch some": "invalid batch_size value: 'some'",
    "sample --model mage-base --tiny --labels 3": "unconditional",
    "sample --model mage-base --tiny --num 0": "--num",
    "sample --model mage-base --tiny --guidance 2": "no null class",
    "sample --model mage-base --tiny --device warp": "warp",
    "sample --model mage-bas --tiny": "did you mean 'mage-base'",
    "sample --model maskgit --labels 1,x": "label 'x' is no number",
    "sample --model maskgit --labels 5": "0 to 4",
    "sample --model maskgit --full 3 --local 9": "local",
    "sample --model maskgit --temperature -1": "temperature",
    "sample --model maskgit --full 3 --local 0 --compare": "--local",
    "sample --model bare --full 3": "no tokenizer",
}
EDITS = {
    "large.jpg --keep left": "60 x 40 pixels but this model draws 8 x 8; crop and scale it first",
    "large.jpg --mask mask.png --fit": "mask is 8 x 8 pixels but the image 60 x 40",
    "small.png --mask left.png": "mask is 60 x 40 pixels but the image 8 x 8",
    "small.png --mask black.png": "is empty, so there is nothing to redraw",
    "small.png --keep left --labels 9": "out of range",
    "small.png --keep middle": "give one of left, right, top, bottom, center",
    "small.png --keep left:1.0": "all or nothing",
    "small.png --keep left:x": "--keep left:x",
    "small.png --keep left --strength 1": "not allowed with argument",
    "small.png --keep left --num 0": "at least 1",
    "small.png --keep left --full 9": "no room in 8 tokens",
    "small.png --redraw 1,2,3": "'1,2,3' is no box; give four whole numbers",
    "small.png --redraw a,b,c,d": "'a,b,c,d' is no box",
    "small.png --redraw 4,0,4,8": "no part of 8 x 8 pixels",
    "small.png --redraw 0,0,9,8": "no part of 8 x 8 pixels",
    "small.png --strength 0": "above 0 and at most 1",
    "small.png --strength 0.5 --paste": "leave one of them out",
    "none.png --keep left": "No such file",
    "maskgit/config.json --keep left": "cannot identify image file",
}
REFUSED |= {f"edit --model maskgit --labels 1 --image {line}": words for line, words in EDITS.items()}
REFUSED["edit --model maskgit --image small.png --keep left"] = "say with --labels"


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_before_anything_is_written(line: str, place: Path, capsys: Capture) -> None:
    if "bare" in line:
        pipe = Pipeline.from_pretrained("maskgit")
        Pipeline(pipe.model).save_pretrained("bare")
    before = sorted(place.rglob("*"))
    assert REFUSED[line] in refused(capsys, *line.split())
    assert sorted(place.rglob("*")) == before


def raising(error: Exception) -> Callable[..., int]:
    def run(args: object) -> int:
        raise error

    return run


ERRORS = [
    *((error, 2, "bad") for error in (ValueError("bad"), OSError(5, "bad"), FloatingPointError("bad"))),
    *((error, 1, "use --batch auto") for error in (MemoryError(), RuntimeError("out of memory"))),
    (torch.OutOfMemoryError("CUDA"), 1, "use --batch auto"),
    (RuntimeError("mat1 and mat2\nshapes"), 1, "unexpected RuntimeError: mat1 and mat2; shapes; --debug"),
    *((kind(), 1, f"unexpected {kind.__name__}: ") for kind in (KeyError, RecursionError, AssertionError)),
]


@pytest.mark.parametrize(("error", "status", "words"), ERRORS, ids=lambda given: type(given).__name__)
def test_errors_are_one_line_and_a_status(
    error: Exception, status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(plan, "run", raising(error))
    assert main(["plan"]) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("recap plan: ")
    assert words in line
    for argv in (["--debug", "plan"], ["plan", "--debug"]):
        with pytest.raises(type(error)):
            main(argv)


def test_lists_in_messages_become_one_line() -> None:
    error = ValueError("a does not fit\n2 missing:\n  x\n  y\nThe file looks like b.")
    assert one_line(error) == "a does not fit; 2 missing: x, y; The file looks like b."
    assert one_line(ValueError("")) == "ValueError"


def test_messages_move_no_cursor_and_have_an_end() -> None:
    text = one_line(ValueError("a\x1b[2Jb\rc\u202ed\x00\ud800"))
    assert text.isprintable()
    assert text.startswith("a\\x1b[2Jb\\rc\\u202ed")
    long = one_line(ValueError("x" * 10**6))
    assert len(long) < 2 * cli.MAX_MESSAGE
    assert "998,000 more characters" in long
