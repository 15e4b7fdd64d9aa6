"""How much is read of what comes from outside: files may be damaged, or mean harm.

Every limit has a name and a default, and the environment may raise it: RECAP_MOST_PIXELS=200000000.
"""

from __future__ import annotations

import json
import os
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

DEFAULTS = {
    "MOST_PIXELS": 64_000_000,  # of one picture; a small file can claim to be any size
    "MOST_ARRAY_BYTES": 4 * 2**30,  # of all arrays that are read from an npz file, unpacked
    "MOST_TEXT_BYTES": 64 * 2**20,  # of a file of JSON or lines
}
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
AMPLE = 2  # bytes of tensors over bytes of the file: some weights are tied, and never all of them
SMALL = 1 << 20  # bytes that nobody counts
BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError)
BAD_HEADER = (TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError)  # of an array


class CheckpointError(ValueError):
    """A file or folder that cannot be read as the model it was taken for."""


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


def read_json(path: str | Path) -> Any:
    """The content of a JSON file of bounded size and depth, without NaN and the infinite."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    text = read_text(path)
    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error


def array_names(path: str | Path) -> set[str]:
    """The names of the arrays in an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    except BAD_ARCHIVE as error:
        raise ValueError(f"{path} cannot be read as npz ({error}); it is damaged or of another format") from error


def read_arrays(path: str | Path, keys: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Arrays of an npz file, all or some, if they unpack to no more than a limit; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {member.filename: member.file_size for member in archive.infolist()}
        found = {name for name in sizes if name.endswith(".npy")}
        wanted = found if keys is None else found & {f"{key}.npy" for key in keys}
        size = sum(sizes[name] for name in wanted)  # zipfile reads no more than this
        check_limit("MOST_ARRAY_BYTES", size, f"{path} unpacks to {size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            content = {name.removesuffix(".npy"): arrays[name] for name in wanted}
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except (OSError, ValueError, *BAD_ARCHIVE, *BAD_HEADER) as error:
        raise ValueError(f"{path} cannot be read as npz ({error}); it is damaged or of another format") from error
    if odd := [name for name, array in content.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{path} cannot be read as npz: {odd[0]} is no array; write it with numpy.savez")
    return content


def array_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and kind of an array; the stream is at its first byte afterwards."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, dtype = read(stream)
    except (ValueError, *BAD_HEADER) as error:
        raise ValueError(f"{name} is no readable array ({error}); write it with numpy.savez") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}; write it with numpy.savez")
    return shape, by_column, dtype


def read_pickle(path: str | Path, device: torch.device | str = "cpu") -> Any:
    """What a file of `torch.save` holds, if that is data alone; errors are those of torch, or a `CheckpointError`.

    torch unpickles no foreign objects (`weights_only`), but would unpack more than the file has: that is refused.
    """
    size = Path(path).stat().st_size
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                claimed = sum(member.file_size for member in archive.infolist())
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); it is damaged, download it again") from error
        if claimed > size:
            raise CheckpointError(
                f"{path} was refused: it unpacks to {claimed:,} bytes, and torch.save writes what is {size:,} bytes "
                f"long as it is; download it again, or save it anew with torch.save"
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript, which is refused
        return torch.load(path, map_location=device, weights_only=True)


def check_kinds(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights in which torch cannot compute."""
    for key, tensor in tensors.items():
        if (tensor.is_floating_point() and tensor.dtype not in FLOATS) or tensor.is_complex():
            raise CheckpointError(
                f"{path} was refused: {key} is of {tensor.dtype}; save it in float32, bfloat16 or float16"
            )


def check_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that take more room than the file that they come from, and others than plain ones."""
    for key, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise CheckpointError(
                f"{path} was refused: {key} is no plain tensor (but sparse, quantized or empty); "
                f"save the state dict with plain ones"
            )
    check_kinds(tensors, path)
    total, size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), path.stat().st_size
    if total > AMPLE * size + SMALL:
        raise CheckpointError(
            f"{path} was refused: its tensors take {total:,} bytes and the file has {size:,}; save it anew"
        )
