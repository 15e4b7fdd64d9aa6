"""How much of the library stands between a command and its images."""

import inspect
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import pytest
from PIL import Image

import recap
from recap.cli import main
from recap.core.start import check_fit
from recap.pipelines.inputs import labels_of

SOURCE = Path(recap.__file__).parent
THE_METHOD = ("core", "models", "tokenizers", "engine")  # what computes; the rest is what is in the way
MAX_FUNCTIONS, MAX_CALLS = 135, 1400  # of the calls one or two for each tensor of a file


def ours(code: CodeType) -> bool:
    """Whether this is a function of ours beside the method; bodies of modules, classes and loops are none."""
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCE) or path.relative_to(SOURCE).parts[0] in THE_METHOD:
        return False
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.endswith(("comp>", "expr>"))


def test_sampling_takes_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[frame.f_code] += 1

    monkeypatch.chdir(tmp_path)
    sys.setprofile(count)
    try:
        assert main(["sample", "--model", "flowers-mar", "--num", "4", "--full", "2", "--local", "1"]) == 0
    finally:
        sys.setprofile(None)
    assert calls[check_fit.__code__] == calls[labels_of.__code__] == 1
    assert calls[Image.open.__code__] == 0  # the sheet is made of the images in memory
    taken = {code: times for code, times in calls.items() if ours(code)}
    shown = "\n".join(f"{times:4} {Path(code.co_filename).name} {code.co_qualname}" for code, times in taken.items())
    assert len(taken) <= MAX_FUNCTIONS, shown
    assert sum(taken.values()) <= MAX_CALLS, shown
