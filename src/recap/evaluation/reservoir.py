"""A sample of the features of many images, small enough to keep: KID, precision and recall need features."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from recap.evaluation.indices import NumberSet, image_numbers

WORD = 2**64 - 1


class FeatureReservoir:
    """Keep the features of at most `capacity` images, chosen by a hash of the image's number.

    The images with the smallest hashes stay, so the choice is a random one but the same for any batch size, order
    and number of shards. Features are kept in float32 on the CPU. Which images were seen is remembered too, as
    runs of numbers, and one that comes twice is refused.
    """

    def __init__(self, capacity: int = 10_000, seed: int = 0) -> None:
        if capacity < 1 or not 0 <= seed < 2**63:
            raise ValueError(
                f"capacity={capacity} and seed={seed} were given; "
                "expected a capacity of 1 or more and a seed from 0 to 2**63 - 1"
            )
        self.capacity, self.seed = capacity, seed
        self._salt = _mixed(seed)
        self._seen = NumberSet()
        self._size = 0  # of a feature; 0 before the first one
        self._rows: dict[int, Tensor] = {}  # number of an image to its feature (F,)
        self._heap: list[tuple[int, int]] = []  # (-hash, number): the first is the next to leave

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def seen(self) -> NumberSet:
        """The numbers of all images that were offered."""
        return self._seen

    @property
    def indices(self) -> Tensor:
        """The numbers of the images kept, (n,) in rising order."""
        return torch.tensor(sorted(self._rows), dtype=torch.int64)

    @property
    def features(self) -> Tensor:
        """The features kept, (n, F) in the order of `indices`."""
        if not self._rows:
            return torch.empty(0, self._size)
        return torch.stack([self._rows[number] for number in sorted(self._rows)])

    def update(self, features: Tensor, indices: Sequence[int] | Tensor) -> None:
        """Offer a batch of features, (n, F), with the numbers of their images."""
        if features.ndim != 2 or features.shape[1] == 0:
            raise ValueError(f"features have shape {tuple(features.shape)} but (n, F) is expected")
        numbers = image_numbers(indices, len(features))
        features = features.detach().to("cpu", torch.float32)
        if not features.isfinite().all():
            raise ValueError("features have infinite or NaN values; look at the images they come from")
        self._add(features, numbers, NumberSet.of(numbers))

    def merge(self, other: "FeatureReservoir") -> None:
        """Add all that another shard has seen."""
        if (self.capacity, self.seed) != (other.capacity, other.seed):
            raise ValueError(
                f"reservoirs of capacity {self.capacity} and {other.capacity}, seed {self.seed} and {other.seed} "
                "choose different images; build all shards alike"
            )
        self._add(other.features, other.indices.tolist(), other._seen)

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors, to save or to send; `from_state` reads them."""
        return {
            "features": self.features,
            "indices": self.indices,
            "seen": torch.tensor(self._seen.runs, dtype=torch.int64).reshape(-1, 2),
            "settings": torch.tensor([self.capacity, self.seed], dtype=torch.int64),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The reservoir whose `state` this is."""
        expected = {"features", "indices", "seen", "settings"}
        if set(state) != expected or state["settings"].shape != (2,):
            raise ValueError(
                f"the state has {sorted(state)} but that of a reservoir has {sorted(expected)}; save it again"
            )
        reservoir = cls(*state["settings"].tolist())
        features, numbers = state["features"], image_numbers(state["indices"], len(state["features"]))
        seen = NumberSet(tuple(run) for run in state["seen"].reshape(-1, 2).tolist())
        if (
            len(seen & NumberSet.of(numbers)) != len(numbers)
            or len(numbers) != min(len(seen), reservoir.capacity)
            or features.ndim != 2
        ):
            raise ValueError(
                f"the state keeps {len(numbers)} of {len(seen)} images in features of shape {tuple(features.shape)}, "
                f"which a reservoir of {reservoir.capacity} does not; write it again with FeatureReservoir.state"
            )
        reservoir._add(features.to("cpu", torch.float32), numbers, seen)
        return reservoir

    def _add(self, features: Tensor, numbers: list[int], seen: NumberSet) -> None:
        if not len(seen):
            return
        if self._size and features.shape[1] != self._size:
            raise ValueError(f"features of size {features.shape[1]} cannot join those of size {self._size}")
        twice = self._seen & seen
        if not len(twice):
            twice = NumberSet.of(number for number, times in Counter(numbers).items() if times > 1)
        if len(twice):
            raise ValueError(
                f"{len(twice)} image numbers came twice, among them {twice.runs[0][0]}; every image has a number of "
                f"its own"
            )
        self._size = features.shape[1]
        self._seen = self._seen | seen
        for row, number in zip(features, numbers, strict=True):
            entry = (-_mixed(self._salt ^ number), number)
            if len(self._heap) < self.capacity:
                heapq.heappush(self._heap, entry)
            elif entry < self._heap[0]:
                continue
            else:
                del self._rows[heapq.heapreplace(self._heap, entry)[1]]
            self._rows[number] = row.clone()  # a view would keep its whole batch


def _mixed(number: int) -> int:
    """The finalizer of SplitMix64: one to one on 64 bits, so that no two images share a hash."""
    number = (number + 0x9E3779B97F4A7C15) & WORD
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & WORD
    return number ^ (number >> 31)
