"""What a visitor may ask for, and what is kept for how long."""

from __future__ import annotations

from dataclasses import dataclass

from recap.serving import limits

# the images that `recap sample` draws together unless told otherwise; where batches are filled up, files are equal
# only if both fill them up alike
BATCH = 8


@dataclass(frozen=True, slots=True)
class Limits(limits.Limits):
    """Numbers that keep a studio standing, whatever comes; `queue` counts runs, not images."""

    batch: int = BATCH
    queue: int = 16  # runs that may wait
    grace: float = 0.5  # seconds for streams to end after the signal to stop
    max_images: int = 4  # of one run
    max_kept: int = 2**26  # bytes of finished runs
    max_models: int = 3  # in memory at a time

    def __post_init__(self) -> None:
        self.check_positive()
