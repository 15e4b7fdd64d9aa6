"""Numbers of images, as the metrics that depend on them take them."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Self

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


class NumberSet:
    """Numbers of images, kept as runs of neighbours: what is seen in order takes no room, however much it is."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        """`runs` are pairs of first and last number, in any order."""
        self.runs: list[tuple[int, int]] = []
        for first, last in sorted(runs):
            if self.runs and first <= self.runs[-1][1] + 1:
                self.runs[-1] = (self.runs[-1][0], max(last, self.runs[-1][1]))
            else:
                self.runs.append((first, last))

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Self:
        return cls((number, number) for number in numbers)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    def __or__(self, other: "NumberSet") -> "NumberSet":
        return NumberSet([*self.runs, *other.runs])

    def __and__(self, other: "NumberSet") -> "NumberSet":
        common: list[tuple[int, int]] = []
        mine, theirs = iter(self.runs), iter(other.runs)
        a, b = next(mine, None), next(theirs, None)
        while a is not None and b is not None:
            if max(a[0], b[0]) <= min(a[1], b[1]):
                common.append((max(a[0], b[0]), min(a[1], b[1])))
            if a[1] < b[1]:
                a = next(mine, None)
            else:
                b = next(theirs, None)
        return NumberSet(common)

    def missing(self, count: int) -> list[int]:
        """The numbers below `count` that are not among these."""
        left: list[int] = []
        at = 0
        for first, last in self.runs:
            left += range(at, min(first, count))
            at = last + 1
        return [*left, *range(at, count)]
