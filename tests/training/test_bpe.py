"""A vocabulary learned from texts."""

import sys
from pathlib import Path

import pytest

from recap.tokenizers.bpe import END, MASK, NAME
from recap.training.bpe import train_bpe

NOUNS = (("bird", "garden"), ("rose", "valley"), ("child", "city"))
TEXTS = [f"A {noun} of the {place} sang, and the {place}s sang.\nThen it rained.\n" for noun, place in NOUNS] * 5
SIZE = 300


@pytest.fixture(scope="module")
def package() -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed; the extra hf brings it")


@pytest.mark.usefixtures("package")
def test_what_is_frequent_becomes_one_id_and_the_same_texts_give_the_same_file(tmp_path: Path) -> None:
    tokenizer = train_bpe(TEXTS, tmp_path / "one", SIZE)
    assert (len(tokenizer), tokenizer.eos_id, tokenizer.mask_id) == (SIZE, 0, SIZE - 1)
    assert set(tokenizer.specials) == {END, MASK}
    assert [len(tokenizer.encode(word)) for word in (" the", " of", " sang")] == [1, 1, 1]
    assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in TEXTS)
    assert not any(b" " in piece[1:] or b"\n" in piece[:-1] for piece in tokenizer.pieces)  # within words alone
    train_bpe(iter(TEXTS), tmp_path / "two", SIZE)
    assert (tmp_path / "one" / NAME).read_bytes() == (tmp_path / "two" / NAME).read_bytes()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("size", "words"), [(257, "no room for 256 bytes and 2 specials"), (4096, r"pairs for 3\d\d ids")]
)
def test_sizes_that_cannot_be_are_refused(size: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        train_bpe(TEXTS, tmp_path, size)
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install \"recap-mgm\[hf\]\""):
        train_bpe(TEXTS, tmp_path, SIZE)
