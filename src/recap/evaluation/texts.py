"""Texts on disk with what a judge says of each: a run may stop at any time, go on, and be shared by processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from recap.checkpoints.safe_files import read_text
from recap.evaluation.perplexity import Perplexity, PerplexityJudge
from recap.evaluation.text import Estimate, distinct_ngrams, unigram_entropy
from recap.pipelines import TextPipeline
from recap.runs.files import atomic_write
from recap.runs.numbered import TextFolder
from recap.runs.works import Done
from recap.view.progress import tqdm
from recap.view.say import say

MOST_NATS = 700.0  # of a token; no figure has room for more
GRAMS = (1, 2, 3)


class Judge(Protocol):
    """What says how likely texts are."""

    def read(self, texts: Sequence[str]) -> Perplexity: ...


def load_judge() -> Judge | None:
    """The judge, or none where it is not installed, which is said."""
    try:
        return PerplexityJudge.load()
    except ModuleNotFoundError as error:
        say(f"perplexity is left out: {error}")
        return None


@dataclass(frozen=True, slots=True)
class JudgedText:
    """A text, its tokens, and what the judge says of it: nats, of so many tokens of its own."""

    text: str
    tokens: Sequence[int | str]  # ids, or words where there are none
    judged: tuple[float, float] | None = None

    @classmethod
    def from_json(cls, line: str) -> Self:
        data = json.loads(line)
        text, tokens, judged = data["text"], data.get("ids"), data.get("judged")
        if not isinstance(text, str) or not (tokens is None or all(isinstance(token, int) for token in tokens)):
            raise TypeError("a text and its ids were expected")
        found = None if judged is None else (float(judged[0]), float(judged[1]))
        if found is not None and not 0 <= found[0] <= MOST_NATS * found[1]:
            raise ValueError(f"nobody can have judged {found[0]} nats of {found[1]} tokens")
        return cls(text, text.split() if tokens is None else tokens, found)

    def json(self, index: int) -> str:
        about = {"index": index, "text": self.text, "ids": list(self.tokens), "judged": self.judged}
        return json.dumps(about, ensure_ascii=False)

    def judged_by(self, judge: Judge | None) -> Self:
        """The same text, read by the judge if there is one and none has read it yet."""
        if judge is None or self.judged is not None:
            return self
        found = judge.read([self.text])
        return replace(self, judged=(float(found.nats[0]), float(found.tokens[0])))


class JudgedFolder(TextFolder):
    """Texts as they are written, each a line of JSON with its ids, and judged at once."""

    ending = "json"

    def __init__(
        self, path: str | Path, num: int, settings: Mapping[str, Any], pipe: TextPipeline, judge: Judge | None
    ) -> None:
        super().__init__(path, num, settings, self.line)
        self.pipe, self.judge = pipe, judge

    def line(self, result: Done) -> str:
        ids = self.pipe.written(result.work, result.tokens).tolist()
        return JudgedText(str(self.pipe.answer(result)), ids).judged_by(self.judge).json(result.work.index)

    def read(self) -> list[JudgedText]:
        return [JudgedText.from_json(line) for line in self.texts()]


def text_figures(texts: Sequence[JudgedText]) -> dict[str, float]:
    """Perplexity if all were judged, entropy, and shares of different n-grams; each with its standard error."""
    if len(texts) < 2:
        raise ValueError(f"there is {len(texts)} text; standard errors need two or more")
    found: dict[str, Estimate] = {}
    judged = [text.judged for text in texts if text.judged is not None]
    if len(judged) == len(texts):
        nats, tokens = torch.tensor(judged, dtype=torch.float64).unbind(1)
        if not float(tokens.sum()):
            raise ValueError(
                f"{len(texts)} texts have no two tokens in a row for the judge; give some that are longer"
            )
        perplexity = Perplexity(nats, tokens)
        found["perplexity"] = Estimate(perplexity.value, perplexity.error)
    rows = [text.tokens for text in texts]
    found["entropy"] = unigram_entropy(rows)
    found |= {f"distinct_{n}": distinct_ngrams(rows, n) for n in GRAMS}
    pairs = [(name, f"{name}_error", estimate) for name, estimate in found.items()]
    return {key: float(value) for name, error, both in pairs for key, value in zip((name, error), both, strict=True)}


def shown(figures: Mapping[str, float], names: Sequence[str] = ("perplexity", "entropy")) -> str:
    """Figures with their errors, for people."""
    known = [name for name in names if name in figures]
    return ", ".join(f"{name} {Estimate(figures[name], figures[f'{name}_error'])}" for name in known)


def judged_all(texts: Sequence[JudgedText], judge: Judge | None, name: str = "") -> list[JudgedText]:
    """The texts with what the judge says of those that none has read yet."""
    hidden = judge is None or all(text.judged for text in texts)
    return [
        text.judged_by(judge) for text in tqdm(texts, desc=f"judging {name}".strip(), unit="text", disable=hidden)
    ]


def write_texts(path: Path, texts: Sequence[JudgedText]) -> None:
    """A line of JSON for each."""
    with atomic_write(path) as file:
        for index, text in enumerate(texts):
            file.write(f"{text.json(index)}\n".encode())


def read_texts_of(path: str | Path, encode: Callable[[str], Sequence[int]] | None = None) -> list[JudgedText]:
    """The texts of a folder, a file for each, or of a file: lines of JSON with a "text", or a text on each line.

    Tokens are ids that a file of JSON has, else those that `encode` gives, or words without it.
    """
    path = Path(path)
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix == ".txt")
        if not files and (path / "texts.jsonl").is_file():
            files = [path / "texts.jsonl"]
    found: list[JudgedText] = []
    for file in files:
        content = read_text(file)
        if file.suffix == ".jsonl":
            found += [_from_line(file, number, line) for number, line in enumerate(content.splitlines(), start=1)]
        else:
            parts = [content] if path.is_dir() else content.splitlines()
            found += [JudgedText(part, part.split()) for part in parts if part.strip()]
    if not found:
        raise ValueError(f"{path} has no texts; give a folder of .txt files, or a .txt or .jsonl with a text a line")
    if encode is None:
        return found
    return [
        text if text.tokens and isinstance(text.tokens[0], int) else replace(text, tokens=list(encode(text.text)))
        for text in found
    ]


def _from_line(path: Path, number: int, line: str) -> JudgedText:
    try:
        return JudgedText.from_json(line)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(
            f"{path} has no text in line {number} ({error!r}); expected a JSON object with a text in each line"
        ) from error
