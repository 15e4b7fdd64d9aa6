"""What time it is, once a device is done."""

from __future__ import annotations

import time

import torch


def synchronized_time(device: torch.device) -> float:
    """The time once all work is done; waits only for a device that runs on its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()
