from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.golden import tensor_input


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def images() -> Tensor:
    return tensor_input("img", (2, 3, 16, 16), scale=1.0) + 0.5
