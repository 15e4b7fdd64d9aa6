"""Texts to train on: read from plain or packed files, and encoded into one array of ids."""

from __future__ import annotations

import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SUFFIXES = (".txt", ".txt.xz")
SEPARATOR = "\x1e"  # between the records of a file
MOST_BYTES = 2**32  # of all texts, unpacked: a small file can hold any number


class TextTokenizer(Protocol):
    """What texts are encoded with, `BPE` for one."""

    @property
    def eos_id(self) -> int: ...

    def __len__(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...


def read_texts(path: str | Path) -> list[str]:
    """The texts of a .txt or .txt.xz file, or of all in a folder, by name; \\x1e separates those of one file.

    White space around a text is left out, an empty text too, and lines end with "\\n".
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give a {' or '.join(SUFFIXES)} file, or a folder of them")
    files = sorted(file for file in path.iterdir() if is_text(file)) if path.is_dir() else [path]
    if not files or not is_text(files[0]):
        raise ValueError(f"{path} is no text; expected a {' or '.join(SUFFIXES)} file, or a folder of them")
    texts, left = [], MOST_BYTES
    for file in files:
        content = read_file(file, left)
        left -= len(content)
        try:
            records = content.decode().replace("\r\n", "\n").split(SEPARATOR)
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 ({error}); save it as such") from error
        texts += [text for record in records if (text := record.strip())]
    if not texts:
        raise ValueError(f"{path} has no text in it")
    return texts


def is_text(file: Path) -> bool:
    return file.is_file() and file.name.endswith(SUFFIXES)


def read_file(file: Path, most: int) -> bytes:
    """A file, unpacked, of bounded size."""
    try:
        with lzma.open(file) if file.suffix == ".xz" else file.open("rb") as stream:
            content = stream.read(most + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"{file} cannot be unpacked ({error}); it is damaged or of another format") from error
    if len(content) > most:
        raise ValueError(f"{file} goes beyond {MOST_BYTES:,} bytes of text, the most that are read; give fewer texts")
    return content


def encoded(texts: Iterable[str], tokenizer: TextTokenizer) -> NDArray[np.uint16]:
    """The ids of all texts, one after another, with the id that ends a text after each."""
    if len(tokenizer) > 2**16:
        raise ValueError(f"the tokenizer has {len(tokenizer):,} ids, and ids are kept in 16 bits; use a smaller one")
    end = [tokenizer.eos_id]
    parts = [np.array(tokenizer.encode(text) + end, np.uint16) for text in texts]
    return np.concatenate(parts) if parts else np.empty(0, np.uint16)
