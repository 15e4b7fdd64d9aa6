"""Antibody sequences: AntiBERTy, whose weights come inside a package, and its letters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recap.filling import fill
from recap.models.masked_lm import MaskedLMAdapter

PACKAGE = "antiberty==0.1.3"  # later versions carry no weights
HOW = f"pip install 'recap-mgm[hf]' and pip install --no-deps {PACKAGE}"
MASK = "_"


class AntiBERTy:
    """The antibody language model of Ruffolo, Gray and Sulam (2021), for sequences of residue letters.

    Masked residues are written as underscores. Its weights are read from the package `antiberty`, whose code is not
    run; transformers' `BertForMaskedLM` is the network.
    """

    def __init__(self, model: MaskedLMAdapter, words: Sequence[str]) -> None:
        self.model, self.words = model, tuple(words)
        self.ids = {word: index for index, word in enumerate(words)}

    @classmethod
    def load(cls) -> AntiBERTy:
        """Read the installed weights."""
        folder = weights_folder()
        try:
            from transformers import BertConfig, BertForMaskedLM
        except ImportError as error:
            raise ValueError(f"AntiBERTy needs transformers, which is not installed; {HOW}") from error
        words = (folder / "vocab.txt").read_text().split()
        about = json.loads((folder / "AntiBERTy_md_smooth" / "config.json").read_text())
        net: nn.Module = BertForMaskedLM(BertConfig(**about))
        net.eval()
        tensors = torch.load(
            folder / "AntiBERTy_md_smooth" / "pytorch_model.bin", map_location="cpu", weights_only=True
        )
        load_strictly(net, tensors)
        ids = {word: index for index, word in enumerate(words)}
        residues = [index for word, index in ids.items() if not word.startswith("[")]
        return cls(MaskedLMAdapter(net, mask_id=ids["[MASK]"], pad_id=ids["[PAD]"], drawn=residues), words)

    @property
    def residues(self) -> str:
        """The letters that a sequence may have."""
        return "".join(word for word in self.words if not word.startswith("["))

    def encode(self, sequence: str) -> list[int]:
        """Ids of a sequence, with the ends that the model expects."""
        if not sequence:
            raise ValueError("a sequence is empty; give residue letters, with an underscore for each masked one")
        strange = sorted(set(sequence) - set(self.residues) - {MASK})
        if strange:
            raise ValueError(
                f"{''.join(strange)!r} in {shortened(sequence)!r} is no residue; write {self.residues} for "
                f"known ones and {MASK} for masked ones"
            )
        if len(sequence) + 2 > self.model.longest:
            raise ValueError(
                f"{shortened(sequence)!r} has {len(sequence)} residues; the model has places for "
                f"{self.model.longest - 2}"
            )
        letters = ["[MASK]" if letter == MASK else letter for letter in sequence]
        return [self.ids[word] for word in ("[CLS]", *letters, "[SEP]")]

    def decode(self, ids: Sequence[int]) -> str:
        """The sequence between the ends."""
        words = (self.words[index] for index in ids[1:-1])
        return "".join(MASK if word == "[MASK]" else word for word in words)

    def fill(self, sequences: Sequence[str], **options: Any) -> list[str]:
        """Every underscore replaced by a residue; see `recap.fill` for the options."""
        return [self.decode(ids) for ids in fill(self.model, [self.encode(s) for s in sequences], **options)]


def weights_folder() -> Path:
    """Where the installed package keeps its weights; its code is not imported."""
    found = importlib.util.find_spec("antiberty")
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"the weights of AntiBERTy come in a package that is not installed; {HOW}")
    folder = Path(found.submodule_search_locations[0]) / "trained_models"
    if not (folder / "AntiBERTy_md_smooth" / "pytorch_model.bin").is_file():
        version = importlib.metadata.version("antiberty")
        raise ValueError(f"antiberty {version} carries no weights; {HOW}")
    return folder


def load_strictly(net: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Weights into the network: all that it has, and nothing else but the heads that it leaves out."""
    beside = ("bert.pooler.", "cls.species.", "cls.chain.", "cls.graft.", "bert.embeddings.position_ids")
    taken = {name: value for name, value in tensors.items() if not name.startswith(beside)}
    missing, unexpected = net.load_state_dict(taken, strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    wrong = [*(set(missing) - tied), *unexpected]
    if wrong:
        raise ValueError(f"the weights of AntiBERTy do not fit BertForMaskedLM at {wrong[0]!r}; {HOW}")
    net.tie_weights()


def shortened(sequence: str, most: int = 24) -> str:
    return sequence if len(sequence) <= most else sequence[: most - 3] + "..."
