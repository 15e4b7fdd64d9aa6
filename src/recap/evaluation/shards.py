"""Features of images on disk, shard by shard: a run may stop at any time, go on, and be shared by processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recap.checkpoints.safe_files import read_arrays
from recap.evaluation.features import Features, InceptionFeatures, look
from recap.runs.files import atomic_write
from recap.runs.folder import RunFolder
from recap.runs.works import Done
from recap.view.say import say_above


class FeatureFolder(RunFolder):
    """The features of the images of a run, in files that are whole or not there.

    A shard is an npz file with the `numbers` of its images, their `features` and maybe `logits`; npz files have sums
    by which damage shows.
    """

    def __init__(self, path: str | Path, num: int, settings: Mapping[str, Any], net: InceptionFeatures) -> None:
        super().__init__(path, num, settings)
        self.net = net

    def find(self, images: Mapping[int, Any]) -> set[int]:
        found: set[int] = set()
        for path in self._paths():
            try:
                found |= set(self._read(path)[0].tolist())
            except ValueError as error:
                say_above(f"{path} is damaged ({error}); its images are made again")
                path.unlink()
        self.write_manifest()
        return found

    def write(self, results: Sequence[Done]) -> None:
        if not results:
            return
        numbers = [result.work.index for result in results]
        seen = look(self.net, torch.stack([result.pixels for result in results if result.pixels is not None]))
        arrays = {"numbers": np.asarray(numbers, np.int64), "features": seen.features.float().numpy()}
        if seen.logits is not None:
            arrays["logits"] = seen.logits.float().numpy()
        with atomic_write(self.path / f"{min(numbers):06d}.npz") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def read(self) -> Features:
        shards = [self._read(path) for path in self._paths()]
        numbers = np.concatenate([numbers for numbers, _ in shards]) if shards else np.empty(0, np.int64)
        found, rows = np.unique(numbers, return_index=True)
        if len(found) != self.num:
            raise OSError(
                f"{self.path} has the features of {len(found)} of {self.num} images; run the same command again"
            )
        whole, order = Features.join([features for _, features in shards]), torch.from_numpy(rows)
        return Features(whole.features[order], None if whole.logits is None else whole.logits[order])

    def kept(self) -> int:
        return sum(len(read_arrays(path, ("numbers",))["numbers"]) for path in self._paths())

    def clear(self) -> None:
        for path in self._paths():
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.path.glob("*.npz") if path.stem.isdecimal())

    def _read(self, path: Path) -> tuple[np.ndarray, Features]:
        arrays = read_arrays(path)
        if not {"numbers", "features"} <= arrays.keys() <= {"numbers", "features", "logits"}:
            raise ValueError(f"it has {', '.join(arrays)}; expected numbers, features and maybe logits")
        numbers, rows = arrays["numbers"], [arrays[key] for key in ("features", "logits") if key in arrays]
        whole = numbers.ndim == 1 and numbers.dtype == np.int64 and len(numbers) > 0
        if not whole or any(len(r) != len(numbers) or r.ndim != 2 or r.dtype != np.float32 for r in rows):
            raise ValueError("it has numbers, features and logits that do not fit together")
        if not 0 <= numbers.min() <= numbers.max() < self.num:
            raise ValueError(f"it has images {numbers.min()} to {numbers.max()} of a run of {self.num}")
        return numbers, Features(*map(torch.from_numpy, rows))
