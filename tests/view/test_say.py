"""Text from outside reaches a terminal as text: it moves no cursor, whoever prints it."""

import ast
import io
from pathlib import Path

import pytest

import recap
from recap.cli import main
from recap.view.say import printable, say
from tests.pipelines.test_pipeline import pipeline

EVIL = "\x1b]0;owned\x07\x1b[2J\r\u202eabc\x9b31m\udcff"


def test_control_characters_are_written_out() -> None:
    assert printable("two\nlines, größer ✓") == "two\nlines, größer ✓"
    assert all(sign.isprintable() for sign in printable(EVIL))
    say(EVIL, file=(file := io.StringIO()))
    assert file.getvalue() == printable(EVIL) + "\n"
    assert "\\x1b" in file.getvalue()


def test_nothing_else_prints() -> None:
    """In the whole library, but for the one function."""
    home = Path(recap.__file__).parent
    for path in home.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [call.id if isinstance(call, ast.Name) else ast.unparse(call) for call in calls]
        printing = {"print", "tqdm.write", "sys.stdout.write", "sys.stderr.write"} & {*names}
        assert not printing or path.name == "say.py", path


def test_names_from_files_and_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = pipeline("maskgit")
    pipe.class_names = tuple(f"{EVIL[:-1]}{index}" for index in range(5))
    folder = pipe.save_pretrained(tmp_path / "m\x1b[2J")
    few = ["--model", str(folder), "--full", "2", "--local", "0"]
    for argv, status in [
        (["sample", *few, "--num", "1", "--out", str(tmp_path / "o\x1b[2J\r")], 0),
        (["sample", *few, "--num", "1", "--out", str(tmp_path / "o\x1b[2J\r")], 0),
        (["sample", *few, "--num", "1", "--labels", "\x1b[2J"], 2),
        (["plan", *few], 0),
        (["plan", *few, "\x1b[2J"], None),
        (["plan", *few, "--order", "\x1b[2J"], None),
        (["\x1b[2J"], None),
    ]:
        if status is None:
            with pytest.raises(SystemExit):
                main(argv)
        else:
            assert main(argv) == status
        out, err = capsys.readouterr()
        assert all(sign.isprintable() or sign in "\n" for sign in out), argv
        assert all(sign.isprintable() or sign in "\n\r" for sign in err), argv  # a bar begins its line anew
        assert "\r\x1b" not in err
