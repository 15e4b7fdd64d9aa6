"""How much is read of what comes from outside: files may be damaged, or mean harm.

Every limit has a name and a default, and the environment may raise it: RECAP_MOST_PIXELS=200000000.
"""

from __future__ import annotations

import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

DEFAULTS = {
    "MOST_PIXELS": 64_000_000,  # of one picture; a small file can claim to be any size
    "MOST_PICTURE_BYTES": 512_000_000,  # of one picture inside a zip file, unpacked
    "MOST_ARRAY_BYTES": 4 * 2**30,  # of all arrays that are read from an npz file, unpacked
    "MOST_TEXT_BYTES": 64 * 2**20,  # of a file of JSON or lines
}
CHUNK = 1 << 24  # bytes that are unpacked at a time
BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError)


def limit(name: str) -> int:
    """The limit of this name: what the environment says, else the default."""
    text = os.environ.get(f"RECAP_{name}", "")
    if not text:
        return DEFAULTS[name]
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(f"RECAP_{name} is {text!r} in the environment; it must be a whole number")
    return int(text)


def check_limit(name: str, value: int, what: str) -> None:
    """Refuse more than a limit allows, and say how to raise it."""
    if value > (most := limit(name)):
        raise ValueError(
            f"{what}, and at most {most:,} are read; if the file is to be trusted, set RECAP_{name}={value}"
        )


def read_text(path: str | Path) -> str:
    """A text file of bounded size."""
    path = Path(path)
    with path.open("rb") as file:
        content = file.read(limit("MOST_TEXT_BYTES") + 1)
    check_limit("MOST_TEXT_BYTES", len(content), f"{path} has {max(len(content), path.stat().st_size):,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text ({error})") from error


def parse_json(text: str, source: object, *, finite: bool = False) -> Any:
    """JSON, with one kind of error for all that can be wrong with it; `finite` refuses NaN and the infinite."""

    def constant(name: str) -> float:
        if finite:
            raise ValueError(f"{name} is no number of JSON")
        return float(name)

    try:
        return json.loads(text, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not valid JSON: {error}") from error


def read_json(path: str | Path, *, finite: bool = False) -> Any:
    """The content of a JSON file of bounded size and depth."""
    return parse_json(read_text(path), path, finite=finite)


def array_names(path: str | Path) -> set[str]:
    """The names of the arrays in an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    except BAD_ARCHIVE as error:
        raise ValueError(f"{path} cannot be read as npz ({error}); it is damaged or of another format") from error


def read_arrays(path: str | Path, keys: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an npz file, all or some; what they unpack to is bounded before and while they are read.

    Nothing is unpickled: arrays of objects are refused.
    """
    path = Path(path)
    wanted = None if keys is None else set(keys)
    found: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            left = limit("MOST_ARRAY_BYTES")
            for member in archive.infolist():
                name, npy = member.filename.removesuffix(".npy"), member.filename.endswith(".npy")
                if not npy or (wanted is not None and name not in wanted):
                    continue
                with archive.open(member) as stream:
                    found[name] = _array(stream, f"{name} in {path}", left, member.file_size)
                left -= found[name].nbytes
    except (OSError, ValueError, *BAD_ARCHIVE) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise
        raise ValueError(f"{path} cannot be read as npz ({error}); it is damaged or of another format") from error
    return found


def _array(stream: IO[bytes], name: str, left: int, held: int) -> np.ndarray:
    """One array, if its header says that it fits, the archive that it is there, and as many bytes follow."""
    shape, by_column, dtype = array_header(stream, name)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, and nothing is unpickled; save numbers")
    size = math.prod(shape) * dtype.itemsize
    if size > left:
        used = limit("MOST_ARRAY_BYTES") - left
        check_limit("MOST_ARRAY_BYTES", used + size, f"{name} unpacks to {size:,} bytes beside {used:,} others")
    if size > held:
        raise ValueError(f"{name} has {held:,} bytes of {size:,}; the file is cut short")
    if not size:
        return np.empty(shape, dtype)
    values, first = np.empty(size, np.uint8), 0
    while first < size:
        part = stream.read(min(CHUNK, size - first))
        if not part:
            raise ValueError(f"{name} has {first:,} bytes of {size:,}; the file is cut short")
        values[first : first + len(part)] = np.frombuffer(part, np.uint8)
        first += len(part)
    return values.view(dtype).reshape(shape, order="F" if by_column else "C")


def array_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and kind of an array; the stream is at its first byte afterwards."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(f"{name} is no readable array ({error}); write it with numpy.savez") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}; write it with numpy.savez")
    return shape, by_column, dtype
