"""Fill in masked residues of antibody sequences.

Masked residues are underscores. The most confident ones are filled in first: full evaluations of the model, and local
ones that recompute only the residues being filled in. Prints one sequence a line, in the order given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from recap.antibodies import MASK, AntiBERTy
from recap.limits import read_text


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="antiberty", help="the model to ask; antiberty is the one there is")
    parser.add_argument(
        "--sequences",
        nargs="+",
        required=True,
        metavar="SEQ|FILE",
        help="sequences, or files of them (FASTA or lines)",
    )
    parser.add_argument("--full", type=int, default=8, metavar="T", help="full evaluations (default 8)")
    parser.add_argument("--local", type=int, default=8, metavar="T'", help="local evaluations (default 8; 0: plain)")
    parser.add_argument("--chain", type=int, default=1, help="local evaluations that a group may have (default 1)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest residue (default)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--batch", type=int, default=64, help="sequences decoded together at most (default 64)")
    parser.add_argument("--json", action="store_true", help="a list of objects instead of lines")


def run(args: argparse.Namespace) -> int:
    if args.model != "antiberty":
        raise ValueError(f"no model for sequences is called {args.model!r}; use antiberty")
    sequences = [sequence for given in args.sequences for sequence in read(given)]
    model = AntiBERTy.load()
    filled = model.fill(
        sequences,
        full=args.full,
        local=args.local,
        chain=args.chain,
        temperature=args.temperature,
        seed=args.seed,
        batch=args.batch,
    )
    if args.json:
        pairs = zip(sequences, filled, strict=True)
        print(json.dumps([{"given": g, "filled": f, "masked": g.count(MASK)} for g, f in pairs], indent=2))
    else:
        print("\n".join(filled))
    return 0


def read(given: str) -> Sequence[str]:
    """A sequence, or those of a file: one a line, or FASTA, where a sequence may go over several."""
    path = Path(given)
    if len(given) < 256 and path.is_file():
        return parse(read_text(path), given)
    if "." in given or "/" in given:
        raise ValueError(f"{given} is not there; give a file of sequences, or sequences")
    return [given.strip().upper()]


def parse(text: str, name: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(line.startswith(">") for line in lines):
        parts = "\n".join(lines).split(">")[1:]
        sequences = ["".join(part.split("\n")[1:]) for part in parts]
    else:
        sequences = lines
    if not sequences or not all(sequences):
        raise ValueError(
            f"{name} has {'an empty sequence' if sequences else 'no sequences'}; give one a line, or FASTA"
        )
    return [sequence.upper() for sequence in sequences]
