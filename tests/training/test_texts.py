"""Texts on disk, and their ids."""

import lzma
import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.targets import tokenizer_json

from recap.tokenizers import BPE
from recap.training.texts import encoded, read_texts

BYTES = BPE.parse(tokenizer_json())


def test_texts_are_read_from_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("one\r\n\r\ntwo \n\x1e\n\x1e three\u00a0\n".encode())
    with lzma.open(tmp_path / "a.txt.xz", "wb") as file:
        file.write("caf\u00e9 \r x".encode())
    (tmp_path / "c.md").write_text("another kind")
    (tmp_path / "d.txt").mkdir()
    assert read_texts(tmp_path / "b.txt") == ["one\n\ntwo", "three"]
    assert read_texts(str(tmp_path / "a.txt.xz")) == ["caf\u00e9 \r x"]
    assert read_texts(tmp_path) == ["caf\u00e9 \r x", "one\n\ntwo", "three"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"caf\xe9", "a.txt is not UTF-8"),
        ("a.txt", b" \x1e\n", "has no text in it"),
        ("a.txt.xz", b"text", "a.txt.xz cannot be unpacked"),
        ("a.txt.xz", lzma.compress(b"text" * 99)[:-20], "a.txt.xz cannot be unpacked"),
        ("a.md", b"text", "expected a .txt or .txt.xz file, or a folder of them"),
    ],
)
def test_what_is_no_text_is_refused(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(ValueError, match=words):
            read_texts(place)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path / 'nothing'} does not exist")):
        read_texts(tmp_path / "nothing")


def test_no_more_is_unpacked_than_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 60)
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"b" * 60))
    monkeypatch.setattr("recap.training.texts.MOST_BYTES", 120)
    assert [len(text) for text in read_texts(tmp_path)] == [60, 60]
    monkeypatch.setattr("recap.training.texts.MOST_BYTES", 119)
    with pytest.raises(ValueError, match=r"b.txt.xz goes beyond 119 bytes of text"):
        read_texts(tmp_path)


def test_ids_follow_each_other_with_an_end_after_every_text() -> None:
    texts = ["it is", "", "caf\u00e9"]
    ids = encoded(texts, BYTES)
    assert ids.dtype == np.uint16
    ends = np.flatnonzero(ids == BYTES.eos_id)
    assert [BYTES.decode(part) for part in np.split(ids, ends + 1)] == [*texts, ""]
    assert encoded([], BYTES).shape == (0,)


def test_more_ids_than_fit_are_refused() -> None:
    class Large:
        eos_id = 0

        def __len__(self) -> int:
            return 2**16 + 1

        def encode(self, text: str) -> list[int]:
            raise AssertionError("nothing should be encoded")

    with pytest.raises(ValueError, match=r"65,537 ids, and ids are kept in 16 bits"):
        encoded(["a"], Large())
