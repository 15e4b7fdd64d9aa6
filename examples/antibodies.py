#!/usr/bin/env python3
"""Fill in masked residues of antibody sequences with AntiBERTy, by grouped decoding.

    python examples/antibodies.py EVQLVESGGGLVQPGGSLRLS_AASG_NIKDTY --schedule 2+1

Masked residues are underscores. The most confident ones are filled in first: full evaluations of the model, and local
ones that recompute only the residues being filled in. Prints one sequence a line, in the order given.

Everything here but the letters and the file of weights serves for any masked language model of BERT's kind.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recap import ConfidenceOrder, SamplingOptions, Schedule, grouped_decode
from recap.core.canvas import Known
from recap.core.noise import Noise, image_generators
from recap.core.schedule import linear
from recap.models.text.masked_lm import MaskedLMAdapter

PACKAGE = "antiberty==0.1.3"  # later versions carry no weights
HOW = f"pip install 'recap-mgm[hf]' and pip install --no-deps {PACKAGE}"
MASK = "_"
GREEDY = 1e-3  # a temperature at which the most likely residue is taken


@dataclass(frozen=True)
class AntiBERTy:
    """The antibody language model of Ruffolo, Gray and Sulam (2021), with its vocabulary.

    The weights are read from the installed package, whose code is not run; transformers' `BertForMaskedLM` is the
    network.
    """

    model: MaskedLMAdapter
    vocabulary: tuple[str, ...]

    @classmethod
    def load(cls) -> AntiBERTy:
        """Read the installed weights."""
        folder = weights_folder()
        try:
            from transformers import BertConfig, BertForMaskedLM
        except ImportError as error:
            raise ValueError(f"AntiBERTy needs transformers, which is not installed; {HOW}") from error
        net: Any = BertForMaskedLM(BertConfig(**json.loads((folder / "config.json").read_text())))
        load_strictly(net, torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))
        return cls.of(net.eval(), (folder.parent / "vocab.txt").read_text().split())

    @classmethod
    def of(cls, net: Any, vocabulary: Sequence[str]) -> AntiBERTy:
        """Full and local evaluations of `net`, which only ever fills in residues."""
        residues = [index for index, word in enumerate(vocabulary) if not word.startswith("[")]
        mask_id, pad_id = vocabulary.index("[MASK]"), vocabulary.index("[PAD]")
        return cls(MaskedLMAdapter(net, mask_id=mask_id, pad_id=pad_id, allowed_ids=residues), tuple(vocabulary))

    def encode(self, sequence: str) -> list[int]:
        """Ids of a sequence, between the two ends that the model expects."""
        residues = "".join(word for word in self.vocabulary if not word.startswith("["))
        strange = sorted(set(sequence) - set(residues) - {MASK})
        room = self.model.longest - 2
        if not sequence:
            raise ValueError("a sequence is empty; give residue letters, with an underscore for each masked one")
        if strange:
            raise ValueError(f"{''.join(strange)!r} in {sequence[:24]!r} is no residue; use {residues} and {MASK}")
        if len(sequence) > room:
            raise ValueError(f"{sequence[:24]!r}... has {len(sequence)} residues; the model has places for {room}")
        letters = ["[MASK]" if letter == MASK else letter for letter in sequence]
        return [self.vocabulary.index(word) for word in ("[CLS]", *letters, "[SEP]")]

    def decode(self, ids: Sequence[int]) -> str:
        """The sequence between the ends."""
        return "".join(self.vocabulary[index] for index in ids[1:-1])

    @torch.inference_mode()
    def fill(self, sequences: Sequence[str], schedule: str = "8+8", seed: int = 0, batch: int = 64) -> list[str]:
        """Every underscore replaced by a residue, the most confident ones first.

        `schedule` is text such as "16" (without reuse), "8+8" or "8+8:temperature=1"; see `filling_schedule`.
        Sequences with equally many masked residues are decoded together, at most `batch` of them, padded to the
        longest. Each is filled in the same way whatever else is given with it.
        """
        options, filled = SamplingOptions.from_text(schedule), list(sequences)
        encoded = [self.encode(sequence) for sequence in sequences]
        alike: dict[int, list[int]] = defaultdict(list)
        for index, sequence in enumerate(sequences):
            alike[sequence.count(MASK)].append(index)
        for masked, indices in alike.items():
            for first in range(0, len(indices) if masked else 0, batch):
                part = indices[first : first + batch]
                rows = self._decoded([encoded[i] for i in part], filling_schedule(masked, options), seed, part)
                for index, row in zip(part, rows, strict=True):
                    filled[index] = self.decode(row)
        return filled

    def _decoded(
        self, rows: Sequence[list[int]], schedule: Schedule, seed: int, indices: Sequence[int]
    ) -> list[list[int]]:
        """Rows of ids with equally many masked ones, decoded as one batch."""
        config, pad, longest = self.model.config, self.model.description.pad_id, max(map(len, rows))
        ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=self.model.device)
        known = Known(ids, ids == config.mask_id)
        noise = Noise(image_generators(seed, indices), self.model.device)  # a random stream for each sequence
        *_, canvas = grouped_decode(self.model.at(longest), None, schedule, ConfidenceOrder(), noise, known)
        return [row[: len(given)] for row, given in zip(canvas.raster().tolist(), rows, strict=True)]


def filling_schedule(masked: int, options: SamplingOptions) -> Schedule:
    """As many residues in every sub-step as in any other; a sequence with few masked ones takes fewer sub-steps.

    Of the options the numbers of evaluations, `warmup`, `chain` and `temperature` are used; without a temperature the
    most likely residues are taken.
    """
    full, chain = min(options.full or 8, masked), options.chain or 1
    return linear(
        masked,
        full=full,
        local=min(options.local or 0, masked - full, full * chain),
        warmup=options.warmup or 0,
        chain=chain,
        temperature=options.temperature or GREEDY,
    )


def weights_folder() -> Path:
    """Where the installed package keeps its weights; its code is not imported."""
    found = importlib.util.find_spec("antiberty")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"the weights of AntiBERTy come in a package that is not installed; {HOW}")
    folder = Path(found.submodule_search_locations[0]) / "trained_models" / "AntiBERTy_md_smooth"
    if not (folder / "pytorch_model.bin").is_file():
        raise ValueError(f"antiberty {importlib.metadata.version('antiberty')} carries no weights; {HOW}")
    return folder


def load_strictly(net: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Weights into the network: all that it has, and nothing else but the heads that it leaves out."""
    other = ("bert.pooler.", "cls.species.", "cls.chain.", "cls.graft.", "bert.embeddings.position_ids")
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    taken = {name: value for name, value in tensors.items() if not name.startswith(other)}
    missing, unexpected = net.load_state_dict(taken, strict=False)
    wrong = [*(set(missing) - tied), *unexpected]
    if wrong:
        raise ValueError(f"the weights of AntiBERTy do not fit BertForMaskedLM at {wrong[0]!r}; {HOW}")
    net.tie_weights()


def read(given: str) -> list[str]:
    """A sequence, or those of a file: one a line, or FASTA, where a sequence may take several lines."""
    path = Path(given)
    if len(given) < 256 and path.is_file():
        return parse(path.read_text(), given)
    if "." in given or "/" in given:
        raise ValueError(f"{given} is not there; give a file of sequences, or sequences")
    return [given.strip().upper()]


def parse(text: str, name: str) -> list[str]:
    sequences = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith(">") for line in sequences):
        sequences = ["".join(part.split("\n")[1:]) for part in "\n".join(sequences).split(">")[1:]]
    if not sequences or not all(sequences):
        raise ValueError(f"{name} has {'an empty sequence' if sequences else 'no sequences'}; one a line, or FASTA")
    return [sequence.upper() for sequence in sequences]


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description="Fill in masked residues (underscores) of antibody sequences.")
    options.add_argument("sequences", nargs="+", metavar="SEQ|FILE", help="sequences, or files (FASTA or lines)")
    options.add_argument("--schedule", default="8+8", help='evaluations, as in "8+8" (default), "16", "8+8:chain=2"')
    options.add_argument("--seed", type=int, default=0, help="of the draws, where there is a temperature (default 0)")
    options.add_argument("--batch", type=int, default=64, help="sequences decoded together at most (default 64)")
    return options


def main(words: Sequence[str] | None = None) -> None:
    args = parser().parse_args(words)
    try:
        sequences = [sequence for given in args.sequences for sequence in read(given)]
        print("\n".join(AntiBERTy.load().fill(sequences, args.schedule, args.seed, args.batch)))
    except ValueError as error:
        raise SystemExit(f"antibodies.py: {error}") from error


if __name__ == "__main__":
    main()
