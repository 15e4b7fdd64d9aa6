"""Files of `torch.save`, opened only after a look at them from outside, and never run."""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recap.checkpoints.errors import CheckpointError

AMPLE = 2  # bytes of tensors over bytes of the file: some weights are tied, and never all of them
SMALL = 1 << 20  # bytes that nobody counts


def read_pickle(path: str | Path, device: torch.device | str = "cpu") -> Any:
    """What a file of `torch.save` holds, if that is data alone; errors are those of torch, or a `CheckpointError`.

    torch unpickles no foreign objects (`weights_only`). What it would still do is refused here: unpack more than the
    file has, or make an array of any length from a number.
    """
    check_archive(Path(path))
    return torch.load(path, map_location=device, weights_only=True)


def check_archive(path: Path) -> None:
    """Refuse an archive that grows when it is read, and a pickle that asks for room by its size alone."""
    size = path.stat().st_size
    if not size:
        return
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}); it is damaged, download it again") from error
        packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
        claimed = sum(member.file_size for member in members)
        if packed or claimed > size:
            why = f"{packed[0]} in it is compressed" if packed else f"it says that it unpacks to {claimed:,} bytes"
            raise CheckpointError(
                f"{path} was refused: {why}, and torch.save writes what is {size:,} bytes long as it is; "
                f"download it again, or save it anew with torch.save"
            )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"\nbytearray\n") >= 0:
            raise CheckpointError(
                f"{path} was refused: it holds a bytearray, which may be of any length, and nothing of it was run. "
                f"Save the plain state dict, or a safetensors file, where you trust it."
            )


def check_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that are not there in full, byte by byte, in the file that they come from."""
    total, most = 0, AMPLE * path.stat().st_size + SMALL
    for key, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        size = tensor.numel() * tensor.element_size() if plain else 0
        if not plain or size > tensor.untyped_storage().nbytes():
            raise CheckpointError(
                f"{path} was refused: {key} is no plain tensor (sparse, quantized, or of repeated values); "
                f"save the state dict with plain ones"
            )
        total += size
    if total > most:
        raise CheckpointError(
            f"{path} was refused: its tensors take {total:,} bytes and the file has {path.stat().st_size:,}; "
            f"save the state dict anew"
        )
