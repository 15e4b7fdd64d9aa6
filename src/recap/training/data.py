"""Photos to train on: all of them in memory, as 8-bit tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recap.view.pictures import open_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


@dataclass(frozen=True, slots=True)
class Photos:
    """Square pictures of one size with a class each."""

    pixels: Tensor  # (n, 3, s, s) uint8
    labels: Tensor  # (n) int64

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    def to(self, device: torch.device | str) -> Photos:
        return Photos(self.pixels.to(device), self.labels.to(device))


def read_photos(folder: str | Path) -> Photos:
    """The pictures of a folder: every sub-folder is a class, in alphabetical order; without one, all are of one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder; give one of pictures, with a sub-folder for each class")
    pictures, labels = [], []
    for label, place in enumerate(sorted(p for p in folder.iterdir() if p.is_dir()) or [folder]):
        for file in sorted(p for p in place.iterdir() if p.suffix.lower() in SUFFIXES):
            pictures.append(np.asarray(open_picture(file, str(file))))
            labels.append(label)
    shapes = {picture.shape for picture in pictures}
    if not pictures:
        raise ValueError(f"{folder} holds no pictures ({', '.join(SUFFIXES)})")
    if len(shapes) > 1 or pictures[0].shape[0] != pictures[0].shape[1]:
        raise ValueError(
            f"{folder} holds pictures of {sorted(shapes)[:3]}; expected squares of one size, crop them first"
        )
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()  # (n, 3, s, s)
    return Photos(pixels, torch.tensor(labels))
