"""Numbers of images, as the metrics that depend on them take them."""

from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor


def image_numbers(indices: Sequence[int] | Tensor, count: int) -> list[int]:
    """The numbers of `count` images as plain integers, one each, none negative."""
    if isinstance(indices, Tensor):
        if indices.ndim != 1 or indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
            raise ValueError(
                f"indices are {tuple(indices.shape)} of {indices.dtype} but (n,) of integers is expected; "
                "give the number of each image"
            )
        numbers: list[int] = indices.tolist()
    else:
        try:
            numbers = [index(number) for number in indices]
        except TypeError as error:
            raise ValueError(f"indices hold something else than integers ({error}); give image numbers") from error
    if len(numbers) != count:
        raise ValueError(f"{len(numbers)} indices came with {count} images; give the number of each image")
    if numbers and not 0 <= min(numbers) <= max(numbers) < 2**63:
        raise ValueError(f"indices go from {min(numbers)} to {max(numbers)} but numbers from 0 on are expected")
    return numbers
