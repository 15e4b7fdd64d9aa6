"""One thread for each worker: small networks are too small to share, and workers share the cores."""

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else threads)
    yield
    torch.set_num_threads(threads)
