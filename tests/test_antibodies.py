"""Antibody sequences filled in, and what the command says where something is wrong."""

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from recap.antibodies import AntiBERTy
from recap.cli import main
from recap.cli.fill import parse

HERE = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)


def installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("antiberty", "transformers"))


@pytest.fixture(scope="module")
def model() -> AntiBERTy:
    if not installed():
        pytest.skip("antiberty and transformers are not installed")
    return AntiBERTy.load()


def test_known_residues_stay_and_conserved_ones_are_recovered(model: AntiBERTy) -> None:
    given = HERE[:20] + "___" + HERE[23:95] + "_" + HERE[96:]  # a conserved cysteine is among them, and another
    (filled,) = model.fill([given], full=2, local=1)
    assert len(filled) == len(given)
    assert all(g in ("_", f) for g, f in zip(given, filled, strict=True))
    assert (filled[21], filled[95]) == ("C", "C")


def test_lengths_may_differ_and_change_nothing(model: AntiBERTy) -> None:
    given = ["_" + HERE[1:60], "_" + HERE[1:], HERE]
    together = model.fill(given, full=1, local=0)
    assert together == [model.fill([sequence], full=1, local=0)[0] for sequence in given]
    assert together[2] == HERE


@pytest.mark.parametrize("bad", ["EVQ1", "EV Q", "EVQX", "", "A" * 511])
def test_what_is_no_sequence_is_refused(model: AntiBERTy, bad: str) -> None:
    with pytest.raises(ValueError, match=r"no residue|is empty|has 511 residues"):
        model.encode(bad)


def test_the_command_fills_in(model: AntiBERTy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "some.fasta"
    file.write_text(f">one\n{HERE[:60]}\n{HERE[60:95]}_\n{HERE[96:]}\n>two\nevq_vesggg\n")
    assert main(["fill", "--sequences", str(file), "EVQL_ESGGG", "--full", "1", "--local", "0", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [row["masked"] for row in rows] == [1, 1, 1]
    assert rows[0]["filled"] == HERE
    assert all("_" not in row["filled"] for row in rows)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--sequences", "nowhere.fasta"], "nowhere.fasta is not there"),
        (["--sequences", "EVQ_", "--model", "bert"], "no model for sequences is called 'bert'"),
    ],
)
def test_bad_input_is_one_line(args: list[str], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fill", *args]) == 2
    error = capsys.readouterr().err
    assert match in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["", "\n\n", ">only a name\n", ">a\nEVQ\n>b\n"])
def test_files_without_sequences_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"some\.txt has"):
        parse(text, "some.txt")


def test_a_package_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["fill", "--sequences", "EVQ_"]) == 2
    assert "antiberty==0.1.3" in capsys.readouterr().err


def test_a_package_without_weights_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Found:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: Found())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.2.0")
    with pytest.raises(ValueError, match=r"antiberty 0\.2\.0 carries no weights"):
        AntiBERTy.load()
