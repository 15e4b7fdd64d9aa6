"""Byte-level BPE: text to ids and back, from a `tokenizer.json` as the package `tokenizers` writes it.

Pure Python; a file of this kind gives the same ids here and there.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

NAME = "tokenizer.json"
END, MASK = "<|endoftext|>", "<|mask|>"
# Characters are named by ranges: what properties (\w, \s) mean differs between Python and other programs, and between
# versions of Unicode. Letters of all scripts are in; what is left out are signs and punctuation.
LETTER = (
    "A-Za-zªµºÀ-ÖØ-öø-\u1fff\u2c00-\u2dff\u3040-\u31ff\u3400-\u9fff\ua000-\ud7ff\uf900-\ufdff\ufe70-\ufefc"
    "\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc\U00010000-\U0001cfff\U0001e000-\U0001efff\U00020000-\U0003ffff"
)
SPACE = r" \t\r\f\v"
PATTERN = (
    "['\u2019](?:s|t|d|m|re|ve|ll)(?![" + LETTER + "])"  # can't, we'll
    "| ?[" + LETTER + "]+"
    "| ?[0-9]{1,3}"
    "| ?[^" + LETTER + "0-9" + SPACE + r"\n]+"
    r"|\n+"  # apart from spaces: a token that ends a paragraph ends nothing else
    "|[" + SPACE + "]+(?![^" + SPACE + r"\n])"  # all but the last, which belongs to the word that follows
    "|[" + SPACE + "]+"
)
MOST_BYTES = 64 * 2**20  # of a file; those of large models have about ten million
CACHED = 2**16  # pieces whose ids are remembered
GONE = -1  # in place of an id that was merged into its left neighbour
LONG = 64  # characters of a piece that is not worth remembering
ELSEWHERE = (
    'this needs the package tokenizers or transformers: pip install "recap-mgm[hf]" and pass the tokenizer it loads'
)
# what would change ids if it were set, and is not done here
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
OF_MODEL = ("dropout", "unk_token", "byte_fallback", "ignore_merges", *AFFIXES)
OF_FILE = ("normalizer", "truncation", "padding")
OF_SPECIAL = ("single_word", "lstrip", "rstrip")
KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def byte_letters() -> list[str]:
    """The printable character that stands for each byte in a vocabulary (GPT-2's alphabet)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@dataclass(frozen=True, eq=False)
class BPE:
    """A byte-level BPE tokenizer: any text has ids, and the ids give the text again."""

    pieces: tuple[bytes, ...] = field(repr=False)  # by id; of a special its spelling
    merges: Mapping[tuple[int, int], tuple[int, int]] = field(repr=False)  # two ids: their rank, and the id of both
    specials: Mapping[str, int]
    source: str = field(repr=False)  # the content of its file

    @classmethod
    def load(cls, path: str | Path) -> BPE:
        """The tokenizer of a `tokenizer.json`, or of the folder that it lies in."""
        path = Path(path)
        path = path / NAME if path.is_dir() else path
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"{path} has more than {MOST_BYTES:,} bytes; it is no tokenizer")
        try:
            return cls.parse(json.loads(content.decode()))
        except (ValueError, RecursionError) as error:  # of JSON and of UTF-8 too
            raise ValueError(f"{path} cannot be read as a tokenizer: {error}") from error

    @classmethod
    def parse(cls, data: Any) -> BPE:
        """The tokenizer that the content of a `tokenizer.json` describes."""
        model = part(data, "model", dict)
        check_plain(data, model)
        vocab = part(model, "vocab", dict)
        added = part(data, "added_tokens", list)
        specials = {part(token, "content", str): part(token, "id", int) for token in added}
        names = by_id({**vocab, **specials})
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        pieces = tuple(name.encode() if name in specials else spelled(name, letters) for name in names)
        if missing := sorted(set(letters) - set(vocab)):
            raise ValueError(f"its vocabulary lacks {len(missing)} of the 256 bytes, such as {missing[0]!r}")
        merges = read_merges(part(model, "merges", list), vocab)
        ordinary = {*(vocab[letter] for letter in letters), *(merged for _, merged in merges.values())}
        if wrong := [name for name, i in specials.items() if not name or i in ordinary]:
            raise ValueError(
                f"its special {wrong[0]!r} is what plain text is made of as well; give it another spelling"
            )
        return cls(pieces, merges, specials, json.dumps(data, ensure_ascii=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.pieces, self.merges, self.specials, self.source)  # without what is remembered

    def save(self, folder: str | Path) -> None:
        """Write its file into a folder, from which `load` reads it back."""
        (Path(folder) / NAME).write_text(self.source, encoding="utf-8")

    def __len__(self) -> int:
        return len(self.pieces)

    def id_of(self, special: str) -> int:
        """The id of a special token, such as "<|mask|>"."""
        if special not in self.specials:
            raise ValueError(f"the tokenizer has no special {special!r}; it has {', '.join(self.specials) or 'none'}")
        return self.specials[special]

    @property
    def eos_id(self) -> int:
        return self.id_of(END)

    @property
    def mask_id(self) -> int:
        return self.id_of(MASK)

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """The ids of a text. What is spelled like a special is one only with `specials`: users may write anything."""
        parts = self._special.split(text) if specials and self.specials else [text]
        ids: list[int] = []
        for place, words in enumerate(parts):  # specials are at the odd places
            if place % 2:
                ids.append(self.specials[words])
                continue
            for word in self._words.findall(words):
                ids += self._merged(word) if len(word) > LONG else self._remembered(word)
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids, without specials; what is not UTF-8 becomes U+FFFD."""
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if not 0 <= i < len(self)]:
            raise ValueError(f"{wrong[0]} is no id of the tokenizer; its ids are 0 to {len(self) - 1}")
        skipped = set(self.specials.values()) if skip_special_tokens else ()
        return b"".join(self.pieces[i] for i in ids if i not in skipped).decode(errors="replace")

    @cached_property
    def _words(self) -> re.Pattern[str]:
        return re.compile(PATTERN)

    @cached_property
    def _special(self) -> re.Pattern[str]:
        longest_first = sorted(self.specials, key=len, reverse=True)
        return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """The id of each byte."""
        skipped = set(self.specials.values())
        return {piece[0]: i for i, piece in enumerate(self.pieces) if len(piece) == 1 and i not in skipped}

    @cached_property
    def _remembered(self) -> Any:
        return lru_cache(CACHED)(self._merged)

    def _merged(self, word: str) -> tuple[int, ...]:
        """The ids of a piece of text: its bytes, and of all pairs the one of lowest rank is merged, time and again.

        A heap finds it, so that a long piece takes n log n steps.
        """
        try:
            ids = [self._bytes[byte] for byte in word.encode()]
        except UnicodeEncodeError as error:
            found = ascii(error.object[error.start])
            raise ValueError(f"the text is no Unicode: it has the half {found} of a character; remove it") from error
        last = len(ids)
        before, after = list(range(-1, last - 1)), list(range(1, last + 1))
        heap: list[tuple[int, int, int, tuple[int, int]]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < last and (found := self.merges.get((ids[left], ids[right]))):
                heapq.heappush(heap, (found[0], left, found[1], (ids[left], ids[right])))

        for place in range(last - 1):
            offer(place, place + 1)
        while heap:
            _, left, merged, pair = heapq.heappop(heap)
            right = after[left]
            if right == last or (ids[left], ids[right]) != pair:
                continue  # one of the two has been merged with another
            ids[left], ids[right] = merged, GONE
            after[left] = after[right]
            if after[left] < last:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return tuple(i for i in ids if i != GONE)


def part(data: Any, name: str, kind: type) -> Any:
    """An entry of a JSON object, if it is of the right kind."""
    found = data.get(name) if isinstance(data, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{name!r} is {str(found)[:80]!r}; expected {KINDS[kind]}")
    return found


def check_plain(data: dict[str, Any], model: dict[str, Any]) -> None:
    """Refuse what would give other ids than those found here."""
    if (kind := model.get("type", "BPE")) != "BPE":
        raise ValueError(f"it is of the type {str(kind)[:80]!r}, not BPE; {ELSEWHERE}")
    strange = [name for name in OF_MODEL if model.get(name)] + [name for name in OF_FILE if data.get(name)]
    for name in ("post_processor", "decoder"):
        found = data.get(name) or {"type": "ByteLevel"}
        strange += [name] if part(found, "type", str) != "ByteLevel" else []
    for token in part(data, "added_tokens", list):
        part({"added token": token}, "added token", dict)
        strange += [name for name in OF_SPECIAL if token.get(name)]
        strange += [] if token.get("special") else ["an added token that is no special"]
    if strange:
        raise ValueError(f"it has {strange[0]}; {ELSEWHERE}")
    if not matches(split_rule(), data.get("pre_tokenizer")):
        raise ValueError(f"it splits text in a way of its own; {ELSEWHERE}")


def split_rule() -> dict[str, Any]:
    """What `PATTERN` is in a `tokenizer.json`: an entry "pre_tokenizer"."""
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def matches(expected: Any, found: Any) -> bool:
    """Whether JSON is as expected, apart from entries of objects that nothing is said of."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(matches(value, found.get(key)) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(matches, expected, found))
    return bool(expected == found)


def by_id(ids: dict[str, Any]) -> list[str]:
    """Names in the order of their ids, which are 0, 1, 2, ..."""
    if wrong := [name for name, i in ids.items() if not isinstance(i, int) or isinstance(i, bool)]:
        raise ValueError(f"the id of {wrong[0][:80]!r} is {str(ids[wrong[0]])[:80]!r}; expected a whole number")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"the ids of its {len(ids)} pieces are not 0 to {len(ids) - 1}, each once")
    return sorted(ids, key=ids.__getitem__)


def spelled(name: str, letters: Mapping[str, int]) -> bytes:
    """The bytes that the letters of a piece stand for."""
    if wrong := [letter for letter in name if letter not in letters]:
        raise ValueError(f"its piece {name[:80]!r} has {wrong[0]!r}, which stands for no byte; {ELSEWHERE}")
    return bytes(letters[letter] for letter in name)


def read_merges(rows: list[Any], vocab: Mapping[str, int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Merges ("a b" or [a, b], the first of lowest rank) by the ids of their pieces."""
    merges = {}
    for rank, row in enumerate(rows):
        pair = row.split(" ") if isinstance(row, str) else row
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise ValueError(f"its merge {rank} is {str(row)[:80]!r}; expected two pieces")
        if unknown := [name for name in (*pair, "".join(pair)) if name not in vocab]:
            raise ValueError(f"its merge {rank} names {unknown[0][:80]!r}, which its vocabulary lacks")
        merges[vocab[pair[0]], vocab[pair[1]]] = rank, vocab["".join(pair)]
    return merges
