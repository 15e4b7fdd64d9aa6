"""Masked ids of sequences filled in by grouped confidence decoding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from recap.core.canvas import Known
from recap.core.decode import grouped_decode
from recap.core.noise import Noise, image_generators
from recap.core.schedule import Schedule, linear
from recap.core.selection import ConfidenceOrder
from recap.models.masked_lm import MaskedLMAdapter

GREEDY = 1e-3  # a temperature at which the likeliest id is drawn


def fill(
    model: MaskedLMAdapter,
    sequences: Sequence[Sequence[int]],
    *,
    full: int = 8,
    local: int = 8,
    plain: int | None = 0,
    chain: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    batch: int = 64,
) -> list[list[int]]:
    """Sequences of ids with every `mask_id` replaced, the most confident ones first; all other ids stay.

    `full` and `local` are evaluations of the model; a sequence with fewer masked ids than that takes fewer. Lengths
    may differ: sequences with equally many masked ids are decoded together, padded. A temperature of 0 takes the
    likeliest ids. A sequence is filled in the same way whatever else is given with it.
    """
    if temperature < 0:
        raise ValueError(f"temperature is {temperature}; it must be 0 (the likeliest ids) or more")
    if batch < 1:
        raise ValueError(f"batch is {batch}; it must be 1 or more")
    filled = [list(sequence) for sequence in sequences]
    for index, sequence in enumerate(filled):
        if model.description.pad_id in sequence:
            raise ValueError(f"sequence {index} has the padding id {model.description.pad_id}; leave padding out")
    for indices in batches(filled, model.config.mask_id, batch):
        masked = filled[indices[0]].count(model.config.mask_id)
        schedule = filling_schedule(masked, full, local, plain, chain, temperature or GREEDY)
        for index, ids in zip(
            indices, run(model, [filled[i] for i in indices], schedule, seed, indices), strict=True
        ):
            filled[index] = ids
    return filled


def batches(sequences: Sequence[Sequence[int]], mask_id: int, most: int) -> Iterator[list[int]]:
    """Indices of sequences with equally many masked ids, at most so many at a time; nothing masked, nothing to do."""
    alike = defaultdict(list)
    for index, sequence in enumerate(sequences):
        alike[sequence.count(mask_id)].append(index)
    for count, indices in sorted(alike.items()):
        for first in range(0, len(indices) if count else 0, most):
            yield indices[first : first + most]


def filling_schedule(
    masked: int, full: int, local: int, plain: int | None = 0, chain: int = 1, temperature: float = GREEDY
) -> Schedule:
    """As many tokens in every step as in any other; at most one step for each."""
    if full < 1 or local < 0:
        raise ValueError(
            f"full is {full} and local {local}; at least one full evaluation is needed, and none below 0"
        )
    full = min(full, masked)
    local = min(local, masked - full, full * chain)
    return linear(masked, full=full, local=local, plain=plain, chain=chain, token_temperature=temperature)


def run(
    model: MaskedLMAdapter, sequences: Sequence[Sequence[int]], schedule: Schedule, seed: int, indices: Sequence[int]
) -> list[list[int]]:
    """Sequences with equally many masked ids, decoded together."""
    pad, longest = model.description.pad_id, max(map(len, sequences))
    assert pad is not None
    ids = torch.tensor([[*sequence, *[pad] * (longest - len(sequence))] for sequence in sequences])
    known = Known(ids.to(model.device), (ids == model.config.mask_id).to(model.device))
    noise = Noise(image_generators(seed, indices), model.device)
    *_, canvas = grouped_decode(model.at(longest), None, schedule, ConfidenceOrder(), noise, known)
    rows = canvas.raster().tolist()
    return [row[: len(sequence)] for row, sequence in zip(rows, sequences, strict=True)]
