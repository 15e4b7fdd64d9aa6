"""A state dict in one safetensors file or in several, read tensor by tensor: never a second one beside the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from recap.checkpoints.int8 import SCALE, restore
from recap.checkpoints.safe_files import CheckpointError, check_kinds, read_json

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
SHARD = re.compile(r"(.+)-\d+-of-\d+\.safetensors")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
DTYPES = {  # as headers call them
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip
SHOWN = 4  # names of files or tensors in an error


@dataclass(frozen=True, slots=True)
class Weights:
    """The safetensors files of a state dict; iterating reads one tensor after another, restored if it was compact."""

    source: Path  # for people
    files: Mapping[Path, tuple[str, ...]]  # the keys of each
    shapes: Mapping[str, Tensor]  # without memory, and as they will be restored
    compact: bool

    @classmethod
    def of(cls, *files: Path, source: Path | None = None) -> Weights:
        """Files whose headers are read, and nothing else."""
        keys, raw = dict[Path, tuple[str, ...]](), dict[str, Tensor]()
        for file in files:
            with opened(file) as content:
                keys[file] = tuple(content.keys())
                for key in keys[file]:
                    if key in raw:
                        raise CheckpointError(f"{file} has {key}, which another file has too; copy the model again")
                    part = content.get_slice(key)
                    if (kind := part.get_dtype()) not in DTYPES:
                        raise CheckpointError(f"{file} has {key} of {kind}; known here are {', '.join(DTYPES)}")
                    raw[key] = torch.empty(part.get_shape(), dtype=DTYPES[kind], device="meta")
        source = source or files[0]
        check_kinds(raw, source)
        compact = any(key.endswith(SCALE) for key in raw)
        return cls(source, keys, restore(raw, source), compact)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for file, keys in self.files.items():
            with opened(file) as content:
                for key in keys:
                    if key.endswith(SCALE):
                        continue
                    if key + SCALE in keys:
                        parts = {name: content.get_tensor(name) for name in (key, key + SCALE)}
                        yield key, restore(parts, file)[key]
                    elif self.compact and self.shapes[key].is_floating_point():
                        yield key, content.get_tensor(key).float()
                    else:
                        yield key, content.get_tensor(key)  # and nothing holds it here


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file whose tensors can be read one by one."""
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; the folder is incomplete")
    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except CheckpointError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); it is truncated or corrupt, copy it again"
        ) from error


def weights_in(folder: Path) -> Weights:
    """The weights of a model folder: one file, or shards with an index of which tensor lies where."""
    whole, index = folder / WEIGHTS, folder / INDEX
    if not index.is_file():
        return Weights.of(whole)
    if whole.is_file():
        raise CheckpointError(
            f"{folder} has both {WEIGHTS} and {INDEX}, which are two models; remove the one that is not meant"
        )
    listed = read_index(index)
    lost = sorted({name for name in listed.values() if not (folder / name).is_file()})
    if lost:
        raise CheckpointError(f"{folder} lacks {some(lost)}, named in {INDEX}; download the folder again")
    stray = sorted(path.name for path in folder.glob("model-*.safetensors") if path.name not in listed.values())
    if stray:
        raise CheckpointError(f"{folder} has {some(stray)}, which {INDEX} does not name; remove what is of no model")
    found = Weights.of(*(folder / name for name in dict.fromkeys(listed.values())), source=index)
    where = {key: file.name for file, keys in found.files.items() for key in keys}
    if where != listed:
        odd = sorted(key for key in where.keys() | listed.keys() if where.get(key) != listed.get(key))
        key = odd[0]
        raise CheckpointError(
            f"{index} says that {key} is in {listed.get(key, 'no file')}, but it is in {where.get(key, 'none')} "
            f"({len(odd)} such); download the folder again"
        )
    return found


def read_index(path: Path) -> dict[str, str]:
    """Which file every tensor is in."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise CheckpointError(f"{error}; download the folder again") from error
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{path} has no weight_map, which says where each tensor is; download the folder again")
    for key, name in listed.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{path} puts {key} into {name!r}; expected a safetensors file of the same folder")
    return listed


def some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
