"""The Inception Score: how sure a classifier is of each image, and how many classes the images cover."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from recap.evaluation.indices import image_numbers


class ScoreSums:
    """The sums behind the Inception Score of a stream of images, in float64 on the CPU.

    Image i belongs to split i % `splits`, so batches may have any size, come in any order and from any number of
    shards. Each split keeps its count, the sum of p(y|x), and the sum over its images of Σ p(y|x) log p(y|x).
    """

    def __init__(self, splits: int = 10) -> None:
        if splits < 1:
            raise ValueError(f"splits={splits} were asked for but 1 or more is expected")
        self._counts = torch.zeros(splits, dtype=torch.int64)
        self._sums = torch.zeros(splits, 0, dtype=torch.float64)  # (splits, classes)
        self._certainty = torch.zeros(splits, dtype=torch.float64)

    @property
    def splits(self) -> int:
        return len(self._counts)

    @property
    def count(self) -> int:
        """How many images were seen."""
        return int(self._counts.sum())

    def update(self, logits: Tensor, indices: Sequence[int] | Tensor) -> None:
        """Add a batch of logits, (n, classes), with the numbers of their images."""
        if logits.ndim != 2 or logits.shape[1] == 0 or not logits.is_floating_point():
            raise ValueError(
                f"logits are {tuple(logits.shape)} of {logits.dtype} but (n, classes) of floats is expected"
            )
        numbers = image_numbers(indices, len(logits))
        logits = logits.detach().cpu().double()
        if not logits.isfinite().all():
            raise ValueError("logits have infinite or NaN values; look at the images they come from")
        split = torch.tensor([number % self.splits for number in numbers], dtype=torch.int64)
        logs = logits.log_softmax(dim=1)
        p = logs.exp()
        empty = torch.zeros(self.splits, dtype=torch.float64)
        self._add(
            split.bincount(minlength=self.splits),
            torch.zeros(self.splits, logits.shape[1], dtype=torch.float64).index_add_(0, split, p),
            empty.index_add_(0, split, (p * logs).sum(dim=1)),
        )

    def merge(self, other: "ScoreSums") -> None:
        """Add all that another shard has seen."""
        if self.splits != other.splits:
            raise ValueError(f"{other.splits} splits cannot join {self.splits}; build all shards alike")
        self._add(other._counts, other._sums, other._certainty)

    def _add(self, counts: Tensor, sums: Tensor, certainty: Tensor) -> None:
        if not counts.any():
            return
        if self.count and sums.shape[1] != self._sums.shape[1]:
            raise ValueError(f"logits of {sums.shape[1]} classes cannot join those of {self._sums.shape[1]}")
        self._sums = self._sums + sums if self.count else sums.clone()
        self._counts, self._certainty = self._counts + counts, self._certainty + certainty

    def result(self) -> tuple[float, float]:
        """Mean and standard deviation over the splits that have images of exp(E[KL(p(y|x) || p(y))])."""
        used = self._counts > 0
        if not used.any():
            raise ValueError("there is no Inception Score of 0 images; call update first")
        counts = self._counts[used]
        marginal = self._sums[used] / counts[:, None]  # (splits, classes)
        divergence = self._certainty[used] / counts - torch.special.xlogy(marginal, marginal).sum(dim=1)
        scores = divergence.exp()
        return scores.mean().item(), scores.std(correction=0).item()

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors, to save or to send; `from_state` reads them."""
        return {"counts": self._counts.clone(), "sums": self._sums.clone(), "certainty": self._certainty.clone()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The sums whose `state` this is."""
        expected = {"counts", "sums", "certainty"}
        if set(state) != expected:
            raise ValueError(f"the state has {sorted(state)} but {sorted(expected)} of ScoreSums.state are expected")
        counts, sums, certainty = state["counts"], state["sums"], state["certainty"]
        if counts.ndim != 1 or certainty.shape != counts.shape or sums.shape[:-1] != counts.shape:
            raise ValueError(
                f"the state has counts {tuple(counts.shape)}, certainty {tuple(certainty.shape)} and sums "
                f"{tuple(sums.shape)} but (splits,), (splits,) and (splits, classes) are expected; write it again"
            )
        result = cls(len(counts))
        result._add(counts.to("cpu", torch.int64), sums.cpu().double(), certainty.cpu().double())
        return result
