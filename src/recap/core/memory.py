"""Memory of a device: whether it has ended, and giving it back."""

from __future__ import annotations

import gc

import torch

NO_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in NO_MEMORY)


def release(device: torch.device) -> None:
    """Give back what nothing holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
