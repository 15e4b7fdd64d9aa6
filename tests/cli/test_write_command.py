"""`recap write`: prompts from anywhere, texts that are printed or kept, and what is refused."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from recap.cli import main
from recap.pipelines import TextPipeline
from tests.cli.terminals import HIDE, SHOW, Run
from tests.tiny import model as image_model
from tests.writing import text_pipeline, write_model

Capture = pytest.CaptureFixture[str]
SCHEDULE = ("--schedule", "4+12:temperature=1.5")
SOME = ("--length", "16", "--seed", "7", *SCHEDULE)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "words")
    return tmp_path


def recap(*argv: str) -> int:
    return main(argv)


def command(*argv: str) -> list[str]:
    return ["write", "--model", "words", *argv]


def called(*prompts: str, num: int = 1) -> list[str]:
    pipe = TextPipeline.from_pretrained("words")
    pipe.progress = False
    texts = pipe(list(prompts) or None, num_texts=num, gen_length=16, seed=7, schedule="4+12:temperature=1.5").texts
    assert texts is not None
    return texts


def feed(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_prompts_come_from_arguments_a_file_and_standard_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("prompts.txt").write_bytes("\ufeffhe said\r\n\r\n the banana \n".encode())
    feed(monkeypatch, b"two\nlines\n")
    assert recap(*command("-", "--prompts", "prompts.txt", *SOME, "--json")) == 0
    out, err = capsys.readouterr()
    said = [json.loads(line) for line in out.splitlines()]
    prompts = ["two\nlines", "he said", " the banana "]
    assert [each["prompt"] for each in said] == prompts
    assert [each["text"] for each in said] == called(*prompts)
    assert [each["index"] for each in said] == [0, 1, 2]
    assert "words: 3 texts of 16 tokens with 4+12 evaluations in " in err
    assert "3/3 texts" in err
    feed(monkeypatch, b"he said\n")
    assert recap(*command("--prompts", "-", *SOME)) == 0
    assert capsys.readouterr().out == f"{called('he said')[0]}\n"
    assert recap(*command(*SOME)) == 0
    assert capsys.readouterr().out == f"{called()[0]}\n"


def test_a_folder_holds_whole_texts_and_a_run_goes_on(capsys: Capture) -> None:
    argv = command("he said", "the", "--num", "2", *SOME, "--out", "out")
    assert recap(*argv) == 0
    files = sorted(Path("out").glob("0*.txt"))
    texts = called("he said", "the", num=2)
    assert [file.read_bytes().decode() for file in files] == texts
    lines = [json.loads(line) for line in Path("out/texts.jsonl").read_text().split("\n")[:-1]]
    assert [(line["prompt"], line["text"]) for line in lines] == list(
        zip(["he said"] * 2 + ["the"] * 2, texts, strict=True)
    )
    record = json.loads(Path("out/run.json").read_text())
    assert (record["full"], record["local"], record["made"]) == (4, 12, 4)
    assert record["prompts"] == ["he said"] * 2 + ["the"] * 2
    files[1].write_text("damaged")
    capsys.readouterr()
    assert recap(*argv) == 0
    assert "1 of them now" in capsys.readouterr().out
    assert [file.read_bytes().decode() for file in files] == texts
    for other in (["--seed", "8"], ["--length", "17"], ["--past-end"], ["--top-k", "5"]):
        assert recap(*argv, *other) == 2, other
        assert "holds a run with other" in capsys.readouterr().err
    assert recap(*command("she said", "the", "--num", "2", *SOME, "--out", "out")) == 2
    assert "holds a run with other" in capsys.readouterr().err
    assert recap(*command("she said", *SOME, "--out", "out", "--overwrite")) == 0
    assert [file.name for file in sorted(Path("out").glob("0*.txt"))] == ["000000.txt"]


def test_both_ways_are_measured_in_turn(capsys: Capture) -> None:
    argv = command("he said", "the", *SOME, "--compare")
    assert recap(*argv, "--json") == 0
    out, err = capsys.readouterr()
    said = [json.loads(line) for line in out.splitlines()]
    ways = {way: [each["text"] for each in said if each["way"] == way] for way in ("plain", "reused")}
    assert ways["reused"] == called("he said", "the")
    pipe = TextPipeline.from_pretrained("words")
    pipe.progress = False
    assert ways["plain"] == pipe(["he said", "the"], gen_length=16, seed=7, schedule="16:temperature=1.5").texts
    assert "plain decoding in as many steps took " in err
    assert recap(*argv, "--out", "out") == 0
    record = json.loads(Path("out/run.json").read_text())["compare"]
    assert record["full"] == 16
    assert len(record["speedup"]["pairs"]) == 2
    kept = [json.loads(line) for line in Path("out/compare.jsonl").read_text().split("\n")[:-1]]
    assert [each["text"] for each in kept if each["way"] == "plain"] == ways["plain"]
    clear = record["speedup"]["median"] is not None
    assert (record["equal_time"] > 0) <= clear
    assert recap(*command("he", "--length", "16", "--schedule", "16", "--compare")) == 2
    assert "--compare has nothing to compare" in capsys.readouterr().err


def test_a_terminal_is_never_given_what_it_would_obey() -> None:
    """Texts of random weights are full of control characters; files and pipes have them as they are."""
    (whole,) = called("he said")
    assert not whole.isprintable()
    status, text = Run(recap, *command("he said", *SOME, "--overwrite")).end()
    assert status == 0
    shown = "he said" + "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in whole)
    assert shown in text


def test_words_appear_in_place() -> None:
    status, text = Run(recap, *command("he said", "the", "--num", "40", *SOME, "--preview")).end()
    assert status == 0
    assert "░" in text
    assert "%|" not in text  # it takes the place of the progress bar
    assert text.count(HIDE) == text.count(SHOW) == 1
    before, after = text.split(SHOW)
    assert "written 16/16" in before
    assert "text 80 of 80" in before
    assert "he said" in after
    assert "░" not in after


def test_the_cursor_comes_back_after_ctrl_c() -> None:
    run = Run(recap, *command("he", "--num", "100000", *SOME, "--preview", "--out", "out"))
    run.read(lambda written: written.count(b"written") > 3)
    os.write(run.master, b"\x03")
    status, text = run.end()
    assert status == 130
    assert "run the same command again to go on" in text[text.rindex(SHOW) :]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["he", "--chat"], "--chat needs a tokenizer with a chat template, and words has none"),
        (["he", "--json", "--out", "out"], "leave one of them out"),
        (["-", "--prompts", "-"], "standard input can be read once"),
        (["--prompts", "missing.txt"], "missing.txt"),
        (["--prompts", "blank.txt"], "has no prompt; give one on each line"),
        ([""], "prompt 0 is empty"),
        (["he", "--length", "64"], "the model has places for 64; shorten the prompt"),
        (["he", "--num", "0"], "num_texts is 0"),
        (["he", "--length", "9", "--block", "2"], "do not divide into blocks of 2"),
        (["he", "--full", "3", "--schedule", "4+4"], "leave --full or that part of it out"),
        (["he", "--model", "pictures"], "pictures draws images, which is for `recap sample`"),
        (["he", "--model", "mute"], "mute has no tokenizer; give a folder with a tokenizer.json"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    argv: list[str], words: str, capsys: Capture, place: Path
) -> None:
    from recap.checkpoints import save_pretrained

    save_pretrained(image_model("maskgit").module, place / "pictures")
    text_pipeline().save_pretrained(place / "mute")
    (place / "mute" / "tokenizer.json").unlink(missing_ok=True)
    Path("blank.txt").write_text("\n \n")
    assert recap("write", "--model", "words", *argv) == 2
    out, err = capsys.readouterr()
    assert words in err
    assert not out
    assert not Path("out").exists()


def test_commands_of_images_name_the_one_for_texts(capsys: Capture) -> None:
    assert recap("sample", "--model", "words") == 2
    assert "words writes text, which is for `recap write`" in capsys.readouterr().err
