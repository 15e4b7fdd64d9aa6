"""`recap sweep`, `evaluate` and `report` for texts: with a judge and without, stopped and gone on with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from recap.cli import evaluate as evaluate_command
from recap.cli import main, measuring
from recap.evaluation import texts
from recap.evaluation.perplexity import Perplexity, PerplexityJudge
from tests.runs.runs import together
from tests.writing import write_model

Capture = pytest.CaptureFixture[str]
SWEEP = ("sweep", "--model", "m", "--num", "4", "--length", "16")
SCHEDULES = ["4", "8", "4+4", "2+6:preset=fast-dllm-dual,temperature=1"]


class Reader:
    """A judge that finds every letter as likely as its place in the alphabet says."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def read(self, some: Sequence[str]) -> Perplexity:
        self.seen += some
        nats = [sum(ord(letter) % 7 for letter in text) for text in some]
        return Perplexity(torch.tensor(nats, dtype=torch.float64), torch.tensor([len(t) for t in some]).double())


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Where there is a small model, and a judge."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m")
    reader = Reader()
    for command in (evaluate_command, measuring):
        monkeypatch.setattr(command, "load_judge", lambda: reader)
    return reader


def result(path: str) -> Any:
    return json.loads(Path(path).read_text())


def sweep(*argv: str, schedules: Sequence[str] = SCHEDULES) -> Any:
    assert main([*SWEEP, *(("--schedule", *schedules) if schedules else ()), *argv]) == 0
    return result("sweep/sweep.json")


def test_a_sweep_of_texts_goes_on_where_it_stopped(judge: Reader, capsys: Capture) -> None:
    first = sweep(schedules=SCHEDULES[:2])
    read = list(judge.seen)
    assert len(read) == 8
    whole = sweep("--repeat", "8")
    assert "2 points done, 4 to go" in capsys.readouterr().out
    assert len(judge.seen) == 4 * 6
    assert [row["schedule"] for row in whole["rows"]] == SCHEDULES
    assert whole["points"][0]["figures"] == first["points"][0]["figures"]
    point, dual = whole["points"][2], whole["points"][3]
    assert (point["evaluations"], dual["evaluations"], dual["alike"]) == ([4, 4], [2, 6], "temperature 1")
    lengths = {len(point["runs"][kind]) for point in whole["points"] for kind in ("wall", "processor")}
    assert lengths == {measuring.ROUNDS}  # all points were timed in the same turns
    assert whole["rows"][1]["figures"]["entropy_error"] < first["rows"][1]["figures"]["entropy_error"]  # three seeds
    assert whole["rows"][2]["against"]["equal_steps"]["schedule"] == "8"
    lines = [json.loads(line) for line in Path("sweep/texts-8-seed0.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == read[4:]
    assert {len(line["ids"]) for line in lines} == {16}
    with Image.open("sweep/sweep.png") as picture:
        assert picture.size[0] > picture.size[1] * 2  # perplexity, and entropy beside it
    files = {path.suffix for path in Path("sweep").iterdir()}
    assert files == {".json", ".png", ".jsonl"}  # and no folder is left


def test_a_sweep_that_is_stopped_within_a_point_loses_no_text(
    judge: Reader, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    real = Reader.read

    def read(self: Reader, some: Sequence[str]) -> Perplexity:
        if len(self.seen) == 2:
            raise KeyboardInterrupt
        return real(self, some)

    monkeypatch.setattr(Reader, "read", read)
    assert main([*SWEEP, "--schedule", "8"]) == 130
    monkeypatch.setattr(Reader, "read", real)
    stopped = sweep(schedules=["8"])
    assert len(judge.seen) == 4  # the first two were neither written nor read again
    assert main([*SWEEP, "--schedule", "8", "--out", "whole"]) == 0
    assert result("whole/sweep.json")["points"][0]["figures"] == stopped["points"][0]["figures"]
    write_model(Path("m"), depth=1)
    capsys.readouterr()
    assert main([*SWEEP, "--schedule", "8"]) == 2
    assert "sweep with other weights" in capsys.readouterr().err


def test_without_a_judge_all_else_is_measured_and_one_that_comes_later_reads_what_is_there(
    judge: Reader, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(PerplexityJudge, "load", classmethod(missing))
    monkeypatch.setattr(measuring, "load_judge", texts.load_judge)
    alone = sweep(schedules=["4", "4+4"])
    out = capsys.readouterr().out
    assert 'perplexity is left out: no judge; pip install "recap-mgm[judge]"' in out
    assert "no judge has read all of the texts" in out
    assert alone["rows"][0]["quality"] is None
    assert alone["rows"][0]["figures"]["distinct_2"] > 0
    monkeypatch.setattr(measuring, "load_judge", lambda: judge)
    judged = sweep(schedules=["4", "4+4"])
    assert "2 points done, 0 to go" in capsys.readouterr().out
    assert len(judge.seen) == 8
    for before, after in zip(alone["points"], judged["points"], strict=True):
        assert {"perplexity", *before["figures"]} <= after["figures"].keys()
        assert after["figures"]["entropy"] == before["figures"]["entropy"]
        assert after["runs"] == before["runs"]


def missing(cls: type) -> None:
    raise ModuleNotFoundError('no judge; pip install "recap-mgm[judge]"')


def test_times_of_texts_can_be_taken_again(judge: Reader) -> None:
    before = sweep(schedules=["4", "4+4"])
    after = sweep("--retime", schedules=[])
    for old, new in zip(before["points"], after["points"], strict=True):
        assert new["figures"] == old["figures"]
        assert new["runs"] != old["runs"]


def test_one_point_is_measured_like_a_sweep_measures_it(judge: Reader, capsys: Capture) -> None:
    point = sweep(schedules=["4+4"])["points"][0]
    run = ("evaluate", "--model", "m", "--num", "4", "--length", "16", "--schedule", "4+4")
    assert main([*run, "--out", "one"]) == 0
    assert "4 texts, perplexity" in capsys.readouterr().out
    one = result("one/result.json")
    assert one["figures"] == point["figures"]
    assert (one["evaluations"], one["modality"]) == ("4+4", "text")
    for out, argv in {"ids": (), "again": ("--model", "m")}.items():
        assert main(["evaluate", "--texts", "one/texts.jsonl", "--out", out, *argv]) == 0
        assert result(f"{out}/result.json")["figures"] == point["figures"]


def test_texts_of_files_are_words_or_tokens_of_a_model(judge: Reader, capsys: Capture) -> None:
    Path("some").mkdir()
    for name, content in {"a": "the cat sat on the mat", "b": "a b c\nd e f"}.items():
        Path(f"some/{name}.txt").write_text(content)
    Path("some.txt").write_text("the cat sat on the mat\n\na b c d e f\n")
    assert main(["evaluate", "--texts", "some", "--out", "folder"]) == 0
    assert main(["evaluate", "--texts", "some.txt", "--out", "file"]) == 0
    found = [result(f"{out}/result.json") for out in ("folder", "file")]
    assert found[0]["figures"]["distinct_1"] == found[1]["figures"]["distinct_1"] == (5 / 6 + 1) / 2
    assert [each["tokens"] for each in found] == ["words", "words"]
    assert main(["evaluate", "--texts", "some.txt", "--model", "m", "--out", "tokens"]) == 0
    assert result("tokens/result.json")["figures"]["distinct_1"] < found[1]["figures"]["distinct_1"]  # bytes
    Path("bad.jsonl").write_text('{"text": "one two three"}\n{"no": 1}\n')
    Path("empty.txt").write_text("\n")
    for argv, words in (
        (("--texts", "bad.jsonl"), "bad.jsonl has no text in line 2"),
        (("--texts", "empty.txt"), "has no texts"),
        (("--texts", "some", "--images", "some"), "one of them at a time"),
        (("--model", "m", "--num", "1"), "standard errors need 2 texts"),
        (("--model", "m", "--classes", "even"), "are for images"),
    ):
        assert main(["evaluate", *argv, "--out", "wrong"]) == 2
        assert words in capsys.readouterr().err
    assert not Path("wrong").exists()


def test_prompts_are_taken_in_turn(judge: Reader) -> None:
    Path("prompts.txt").write_text("the cat\na dog\n")
    assert main([*SWEEP, "--schedule", "4", "--prompts", "prompts.txt"]) == 0
    lines = [json.loads(line) for line in Path("sweep/texts-4-seed0.jsonl").read_text().splitlines()]
    assert len({line["text"] for line in lines}) == 4
    assert result("sweep/sweep.json")["prompts"] is not None


def test_a_report_of_texts_holds_every_schedule(judge: Reader) -> None:
    sweep()
    assert main(["report", "sweep", "--out", "page.md"]) == 0
    page = Path("page.md").read_text()
    assert all(f"| {schedule} |" in page for schedule in SCHEDULES)
    assert "At temperature 1, " in page
    assert "](page/m-sweep.png)" in page
    assert "recap sweep --model m --num 4 --length 16" in page


@pytest.mark.xdist_group("ranks")
def test_processes_share_a_sweep_of_texts(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "m"))
    found = {}
    for world in (1, 2):
        out = tmp_path / str(world)
        argv = [
            "sweep",
            "--model",
            model,
            "--num",
            "6",
            "--length",
            "16",
            "--schedule",
            "4",
            "4+4",
            "--out",
            str(out),
        ]
        commands = together(world, *argv, log=tmp_path / f"log{world}", setup=unjudged)
        assert [one.wait() for one in commands] == [0] * world, commands[0].log.read_text()
        found[world] = {path.name: path.read_text() for path in out.glob("*.jsonl")}
    assert len(found[1]) == 2
    assert found[2] == found[1]


def unjudged() -> None:
    """No judge, in a process of its own."""
    vars(measuring)["load_judge"] = lambda: None
