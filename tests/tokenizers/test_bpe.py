"""Byte-level BPE: any text comes back, the file means here what it means elsewhere, and others are refused."""

import json
import pickle
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.targets import tokenizer_json
from hypothesis import given
from hypothesis import strategies as st

from recap.tokenizers import BPE
from recap.tokenizers.bpe import CACHED, END, LETTER, LONG, MASK, NAME, PATTERN, byte_letters

MERGES = [
    "h e",
    "t he",
    "\u0120 the",
    "i n",
    "in g",
    "\u0120 s",
    "a a",
    "aa aa",
    "\u00c3 \u00a9",
    "a n",
    "an d",
    "1 2",
    "\u010a \u010a",
]
MERGES += ["n a", "b an", "ban an", "ana na", "an a"]  # pairs that overlap
# everything that decides where text is split, and letters of more than one byte
SIGNS = st.text(" \t\n\r\f\v'\u2019_-.,019abehinstdml\u00e9\u00d7\u00a0\u0301\u2028\x85\x1c\u4e16\U0001f33b<|>")
TEXTS = (
    st.text()
    | SIGNS
    | st.lists(st.sampled_from([" the", "banana", "aaaaa", "'s", END, MASK, " ", "\n"])).map("".join)
)


def content(merges: list[Any] = MERGES) -> dict[str, Any]:
    joined = [merge.replace(" ", "") if isinstance(merge, str) else "".join(merge) for merge in merges]
    names = [END, *byte_letters(), *dict.fromkeys(joined), MASK]
    data = tokenizer_json()
    data["model"] |= {"vocab": {name: i for i, name in enumerate(names)}, "merges": list(merges)}
    data["added_tokens"][1]["id"] = len(names) - 1
    return data


SMALL = BPE.parse(content())


def pieces(text: str) -> list[bytes]:
    return [SMALL.pieces[i] for i in SMALL.encode(text)]


def by_hand(word: str) -> list[bytes]:
    """Merges of one word as they are defined: of all pairs the leftmost of the lowest rank, again and again."""
    letters = byte_letters()
    found = [letters[byte] for byte in word.encode()]
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    while pairs := [(ranks[pair], i) for i, pair in enumerate(pairwise(found)) if pair in ranks]:
        i = min(pairs)[1]
        found[i : i + 2] = ["".join(found[i : i + 2])]
    return [bytes(map(letters.index, name)) for name in found]


@given(TEXTS)
def test_any_text_comes_back(text: str) -> None:
    ids = SMALL.encode(text)
    assert SMALL.decode(ids) == text
    assert SMALL.encode(SMALL.decode(ids)) == ids
    assert not {SMALL.eos_id, SMALL.mask_id} & set(ids)


@given(st.text("aben\u00e9", min_size=1, max_size=LONG + 20))
def test_pairs_are_merged_in_the_order_of_the_file(word: str) -> None:
    assert pieces(word) == by_hand(word)


@given(TEXTS, TEXTS, st.sampled_from([END, MASK]))
def test_specials_are_found_where_asked_for(before: str, after: str, name: str) -> None:
    ids = SMALL.encode(before + name + after, specials=True)
    assert SMALL.id_of(name) in ids
    assert SMALL.decode(ids, skip_special_tokens=False) == before + name + after
    assert SMALL.id_of(name) not in SMALL.encode(before + name + after)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cat's, don\u2019t", ["The", " cat", "'s", ",", " don", "\u2019t"]),
        ("'tis o'clock 'send", ["'", "tis", " o", "'", "clock", " '", "send"]),
        ("in 1848,  12", ["in", " 184", "8", ",", " ", " 12"]),
        ("a.\n\nB \n  c", ["a", ".", "\n\n", "B", " ", "\n", " ", " c"]),
        ("end  ", ["end", "  "]),
        ("\ttab\r\n", ["\t", "tab", "\r", "\n"]),
        ("na\u00efve \u4e16\u754c!", ["na\u00efve", " \u4e16\u754c", "!"]),
        ("snake_case --\u201cso\u201d", ["snake", "_", "case", " --\u201c", "so", "\u201d"]),
    ],
)
def test_where_text_is_split(text: str, words: list[str]) -> None:
    assert re.findall(PATTERN, text) == words


def test_specials_are_left_out_of_text_unless_asked_for() -> None:
    ids = [SMALL.mask_id, *SMALL.encode("a"), SMALL.eos_id]
    assert (SMALL.eos_id, SMALL.mask_id) == (0, len(SMALL) - 1)
    assert SMALL.decode(ids) == "a"
    assert SMALL.decode(ids, skip_special_tokens=False) == f"{MASK}a{END}"
    half = SMALL.encode("\U0001f33b")
    assert len(half) == 4
    assert SMALL.decode([*half[:2], *SMALL.encode("a")]) == "\ufffda"
    assert SMALL.decode([*half[:2], SMALL.mask_id, *half[2:]]) == "\U0001f33b"


def test_ids_and_specials_that_are_not_there_are_named() -> None:
    with pytest.raises(ValueError, match=rf"-1 is no id of the tokenizer; its ids are 0 to {len(SMALL) - 1}"):
        SMALL.decode([3, -1])
    with pytest.raises(ValueError, match=r"no special '<\|pad\|>'; it has <\|endoftext\|>, <\|mask\|>"):
        SMALL.id_of("<|pad|>")
    with pytest.raises(ValueError, match=r"half '\\ud800' of a character"):
        SMALL.encode("a \ud800")


def test_long_words_take_no_time_of_their_square() -> None:
    start = time.process_time()
    assert len(SMALL.encode("a" * 200_000)) == 50_000
    assert time.process_time() - start < 20  # less than a second here, and hours if every merge looked at all pairs


def test_short_words_are_remembered_and_no_others() -> None:
    tokenizer = BPE.parse(content())
    tokenizer.encode(" the the " + "a" * (LONG + 1))
    about = tokenizer._remembered.cache_info()
    assert (about.hits, about.currsize, about.maxsize) == (1, 1, CACHED)  # " the"
    copy = pickle.loads(pickle.dumps(tokenizer))  # to another process, without them
    assert copy._remembered.cache_info().currsize == 0
    assert copy.encode("banana") == tokenizer.encode("banana")


def test_merges_are_read_in_both_forms_from_a_file_and_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps(content([merge.split(" ") for merge in MERGES])))
    for place in (tmp_path, str(tmp_path / NAME)):
        assert BPE.load(place).merges == SMALL.merges


def vocab(data: dict[str, Any]) -> dict[str, Any]:
    return data["model"]["vocab"]


def split(data: dict[str, Any]) -> dict[str, Any]:
    return data["pre_tokenizer"]["pretokenizers"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("model"), "'model' is 'None'; expected an object"),
        (lambda d: d["model"].pop("vocab"), "'vocab' is 'None'; expected an object"),
        (lambda d: d["model"].update(merges={}), "'merges' is '{}'; expected a list"),
        (lambda d: d["model"]["merges"].append("q u"), "names 'qu', which its vocabulary lacks"),
        (lambda d: d["model"]["merges"].append(["a", "b", "c"]), "expected two pieces"),
        (lambda d: d["model"]["merges"].append("a"), "expected two pieces"),
        (lambda d: d["model"].update(type="Unigram"), "'Unigram', not BPE; .*recap-mgm.hf."),
        (lambda d: d["model"].update(dropout=0.1), "it has dropout; .*recap-mgm.hf."),
        (lambda d: d.update(normalizer={"type": "NFC"}), "it has normalizer; .*recap-mgm.hf."),
        (lambda d: d.update(decoder={"type": "Metaspace"}), "it has decoder; .*recap-mgm.hf."),
        (lambda d: d.update(pre_tokenizer=None), "splits text in a way of its own; .*recap-mgm.hf."),
        (lambda d: split(d).update(behavior="Removed"), "splits text in a way of its own"),
        (lambda d: split(d).update(pattern={"Regex": r"\p{L}+"}), "splits text in a way of its own"),
        (lambda d: d.pop("added_tokens"), "'added_tokens' is 'None'; expected a list"),
        (lambda d: d["added_tokens"].append(3), "'added token' is '3'; expected an object"),
        (lambda d: d["added_tokens"][0].update(special=False), "an added token that is no special"),
        (lambda d: d["added_tokens"][0].update(lstrip=True), "it has lstrip"),
        (lambda d: d["added_tokens"][0].update(id=True), "'id' is 'True'; expected a whole number"),
        (lambda d: d["added_tokens"].append({"content": "a", "id": vocab(d)["a"], "special": True}), "plain text"),
        (lambda d: d["added_tokens"].append({"content": "", "id": len(vocab(d)), "special": True}), "plain text"),
        (lambda d: vocab(d).update(a=vocab(d)["b"]), "not 0 to .*, each once"),
        (lambda d: vocab(d).update(a="1"), "id of 'a' is '1'; expected a whole number"),
        (lambda d: vocab(d).update({"\u4e16": len(vocab(d))}), "'\u4e16', which stands for no byte"),
        (lambda d: vocab(d).update(aab=vocab(d).pop("b")), "lacks 1 of the 256 bytes, such as 'b'"),
    ],
)
def test_other_tokenizers_are_refused(change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path) -> None:
    data = content()
    change(data)
    (tmp_path / NAME).write_text(json.dumps(data))
    with pytest.raises(ValueError, match=words) as refused:
        BPE.load(tmp_path)
    assert str(tmp_path / NAME) in str(refused.value)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000, b"null", b"NaN"])
def test_damaged_files_are_refused(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(damage)
    with pytest.raises(ValueError, match="cannot be read as a tokenizer"):
        BPE.load(tmp_path)


def test_files_of_no_bounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / NAME).write_text(json.dumps(content()))
    monkeypatch.setattr("recap.tokenizers.bpe.MOST_BYTES", 100)
    with pytest.raises(ValueError, match="more than 100 bytes; it is no tokenizer"):
        BPE.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        BPE.load(tmp_path / "nothing")


@pytest.fixture(scope="module")
def theirs() -> Any:
    """The same file, read by the package that has set the format."""
    package = pytest.importorskip("tokenizers", reason="tokenizers is not installed; the extra hf brings it")
    return package.Tokenizer.from_str(json.dumps(content()))


@given(text=TEXTS)
def test_the_package_tokenizers_gives_the_same_ids(theirs: Any, text: str) -> None:
    for specials in (False, True):
        theirs.encode_special_tokens = not specials
        ids = SMALL.encode(text, specials)
        assert ids == theirs.encode(text, add_special_tokens=False).ids
        assert [SMALL.decode(ids, skip) for skip in (True, False)] == [
            theirs.decode(ids, skip) for skip in (True, False)
        ]


@given(ids=st.lists(st.integers(0, len(SMALL) - 1)))
def test_the_package_tokenizers_gives_the_same_text(theirs: Any, ids: list[int]) -> None:
    assert SMALL.decode(ids) == theirs.decode(ids)


def test_characters_are_split_alike(theirs: Any) -> None:
    """Those around the ends of all ranges and a spread of others, each between letters, digits, signs and spaces."""
    near = {ord(c) + step for c in LETTER for step in (-1, 0, 1)}
    chosen = sorted({*range(0x3100), *near, *range(0, 0x110000, 101)} - {*range(0xD800, 0xE000)})
    for first in range(0, len(chosen), 1024):
        text = "".join(f"a{c}1 {c}{c}'s{c} \n{c}" for c in map(chr, chosen[first : first + 1024]))
        split = theirs.pre_tokenizer.pre_tokenize_str(text)
        assert [text[start:end] for _, (start, end) in split] == re.findall(PATTERN, text)
