"""Write texts with a model of text.

Each text goes on from a prompt; where a prompt spells out masks, as in "The <|mask|> barked", these are filled in
instead. MODEL is a folder, a model that comes with the package (see `recap models`), or "owner/name" of the hub. Text
i of a seed is the same whatever else is written. Without --out texts are printed, and what is said of them goes to
standard error; with it, a run that was stopped goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from recap.bench.pairs import DrawInTurn, measured_before
from recap.checkpoints.safe_files import limit, read_text
from recap.cli.options import add_batch, add_model, add_running, add_writing, any_pipeline_of
from recap.core.blocks import text as text_schedule
from recap.core.canvas import Canvas
from recap.core.options import SamplingOptions
from recap.pipelines import TextPipeline
from recap.planning.memory import choose_batch
from recap.runs.draw import draw
from recap.runs.files import as_json
from recap.runs.folder import KEPT, RECORD
from recap.runs.numbered import TextFolder
from recap.runs.ranks import Ranks
from recap.runs.record import identity, record
from recap.runs.sample import sample_all
from recap.runs.works import Done, Failed, Work
from recap.view.frames import TokenState
from recap.view.pieces import finished_pieces
from recap.view.preview import preview
from recap.view.progress import tqdm
from recap.view.say import hand_over, say

TEXTS, COMPARED = "texts.jsonl", "compare.jsonl"  # all of a folder, for programs


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        nargs="*",
        help="what a text begins with; - is standard input; without one it begins from nothing",
    )
    parser.add_argument("--prompts", metavar="FILE", help="further prompts, one on each line; - is standard input")
    parser.add_argument("--chat", action="store_true", help="prompts are what a user says in a chat")
    add_model(parser)
    parser.add_argument("--num", type=int, default=1, help="texts to each prompt (default 1)")
    about = "tokens to write behind the prompt (default 128, or none where the prompt has masks)"
    parser.add_argument("--length", type=int, metavar="N", help=about)
    parser.add_argument("--seed", type=int, default=0, help="of the texts (default 0)")
    parser.add_argument("--past-end", action="store_true", help="keep what follows the end of a text")
    add_batch(parser, noun="text")
    add_running(parser)
    parser.add_argument("--out", metavar="DIR", help="folder for the texts, which are not printed then")
    parser.add_argument("--overwrite", action="store_true", help="start anew in a folder that holds another run")
    parser.add_argument("--json", action="store_true", help="print an object of JSON on a line for each text")
    parser.add_argument(
        "--compare", action="store_true", help="write the same without reuse, in as many steps and in equal time"
    )
    parser.add_argument("--preview", action="store_true", help="show the texts in the terminal as they are written")
    add_writing(parser)


def run(args: argparse.Namespace) -> int:
    if args.json and args.out is not None:
        raise ValueError(f"--json is for what is printed; --out writes {TEXTS} in any case, leave one of them out")
    prompts = prompts_of(args)
    pipe, shown = any_pipeline_of(args, "text")
    assert isinstance(pipe, TextPipeline)
    if pipe.tokenizer is None:
        raise ValueError(f"{shown} has no tokenizer; give a folder with a tokenizer.json in it")
    options = pipe.options_for(SamplingOptions.from_args(args))
    works = works_of(pipe, prompts, args, options)
    schedule = works[0].schedule
    pipe.batch_size = choose_batch(
        pipe, schedule, args.batch, len(works), cache_limit=args.cache_limit, decoded=False
    )
    turns = None
    if args.compare:
        if not schedule.local:
            message = f"{schedule} evaluations are plain decoding; add --local"
            raise ValueError(f"--compare has nothing to compare: {message}")
        plain = works_of(pipe, prompts, args, options.plain(schedule.tokens))
        turns = DrawInTurn(pipe, plain, setup=[brief(works[0])])
    said: list[str | None] = [prompt for prompt in prompts for _ in range(args.num)]
    said = said or [None] * len(works)
    task = Task(pipe, shown, works, said, args, turns)
    for line in task.print() if args.out is None else task.keep(Path(args.out)):
        say(line, file=sys.stdout if args.out else sys.stderr)
    return 0


def prompts_of(args: argparse.Namespace) -> list[str]:
    """What texts are to begin with, from the command line, a file and standard input."""
    if (args.prompt.count("-") + (args.prompts == "-")) > 1:
        raise ValueError("standard input can be read once; say - once")
    prompts = [standard_input().rstrip("\r\n") if prompt == "-" else prompt for prompt in args.prompt]
    if args.prompts is not None:
        text = standard_input() if args.prompts == "-" else read_text(args.prompts)
        lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
        prompts += [line for line in lines if line.strip()]
    if not prompts and (args.prompt or args.prompts is not None):
        raise ValueError(f"--prompts {args.prompts} has no prompt; give one on each line")
    if empty := [number for number, prompt in enumerate(prompts) if not prompt]:
        raise ValueError(f"prompt {empty[0]} is empty; leave it out, and a text begins from nothing")
    return prompts


def standard_input() -> str:
    """All of it, in UTF-8 and of bounded size."""
    most = limit("MOST_TEXT_BYTES")
    content = sys.stdin.buffer.read(most + 1)
    if len(content) > most:
        raise ValueError(f"standard input has more than {most:,} bytes; send less")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input is no text ({error}); send UTF-8") from error


def works_of(
    pipe: TextPipeline, prompts: Sequence[str], args: argparse.Namespace, options: SamplingOptions
) -> list[Work]:
    """The texts to write."""
    if args.chat and not pipe.chats:
        raise ValueError(f"--chat needs a tokenizer with a chat template, and {args.model} has none; leave it out")
    if args.chat and not prompts:
        raise ValueError("--chat needs something that a user says; give a prompt")
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return pipe.works(
        None if args.chat or not prompts else prompts,
        messages=chats if args.chat else None,
        gen_length=args.length,
        num_texts=args.num,
        schedule=options,
        eos_early_stop=not args.past_end,
        seed=args.seed,
    )


def brief(work: Work) -> Work:
    """A run of two evaluations or so, like that of a work, in which all that happens once happens."""
    tokens, known = work.schedule.tokens, work.schedule.known
    return replace(work, schedule=text_schedule(tokens, full=1, local=min(1, tokens - 1), known=known), block=None)


class Task:
    """Texts to write and to print or keep, in turn with plain decoding where that is asked for."""

    def __init__(
        self,
        pipe: TextPipeline,
        shown: str,
        works: Sequence[Work],
        prompts: Sequence[str | None],
        args: argparse.Namespace,
        turns: DrawInTurn | None,
    ) -> None:
        """`prompts` has one for each work, where there are any."""
        self.pipe, self.shown, self.works, self.args, self.turns = pipe, shown, works, args, turns
        self.prompts = dict(zip([work.index for work in works], prompts, strict=True))
        self.schedule = works[0].schedule
        self.name = f"{'reused' if self.schedule.local else 'plain'} {self.schedule}"

    def print(self) -> list[str]:
        """Write, and print every text when it is finished; what is to be said of them."""
        later, failed, began = list[Done](), list[str](), time.perf_counter()
        with preview(self.args.preview, self.pipe, len(self.works), self.name) as seen:
            with Bar(self.works, self.name, hidden=seen is not None) as bar:
                for result in (self.turns or draw)(self.pipe, self.works, seen or bar):
                    if isinstance(result, Failed):
                        failed.append(str(result))
                    elif seen or self.turns:
                        later.append(result)
                    else:
                        self.give(result.work.index, *self.read(result))
            seconds = time.perf_counter() - began
            if seen is not None:
                seen.clear()  # the whole texts follow
        if failed:
            raise FloatingPointError("; ".join(failed))
        if self.turns is None:
            for result in later:
                self.give(result.work.index, *self.read(result))
            return [self.summary(len(self.works), seconds)]
        for way, (title, texts) in self.compared(self.turns).items():
            for index, text in texts.items():
                self.give(index, text, text, way, title)
        seconds = self.turns.pairs.seconds("reused")
        return [self.summary(len(self.works), seconds), self.verdict(self.turns)]

    def keep(self, place: Path) -> list[str]:
        """Write into a folder what it lacks; what is to be said of it, once all of it is there."""
        known, num, turns = identity(self.pipe, self.works), len(self.works), self.turns
        extras = [TEXTS, *[COMPARED] * (turns is not None), RECORD]
        inputs = [path for path in (self.args.prompts,) if path not in (None, "-")]
        answer = self.pipe.answer
        folder = TextFolder(place, num, known, lambda one: str(answer(one)), extras=extras, inputs=inputs)
        with preview(self.args.preview, self.pipe, num, self.name) as seen:
            report = sample_all(
                self.pipe,
                self.works,
                folder,
                Ranks(),
                overwrite=self.args.overwrite,
                name=self.name,
                observer=seen,
                draw_by=turns or draw,
            )
        assert report is not None
        missing = [name for name in extras if report.made or folder.lacks(name)]
        files, told = dict[str, bytes](), list[str]()
        if turns and COMPARED in missing:
            if not report.made:  # the texts are there, but nothing says how long they took
                turns.again(self.pipe, self.works[:KEPT])
            rows = self.compared(turns)
            said = [self.line(index, text, way) for way, row in rows.items() for index, text in row[1].items()]
            files[COMPARED] = as_lines(said)
            pairs = turns.pairs
            folder.about["seconds"] = pairs.seconds("reused")
            folder.about["compare"] = {"full": len(self.schedule.steps), "seconds": pairs.seconds("plain")}
            folder.about["compare"] |= {"speedup": pairs.speedup.json(), "equal_time": self.equal_steps(turns)}
            told = [f"{self.verdict(turns)} -> {place / COMPARED}"]
        elif turns:
            told = [f"nothing was written, and so nothing measured; {measured_before(place / RECORD)}"]
        if TEXTS in missing:
            files[TEXTS] = as_lines(map(self.line, range(num), folder.texts()))
        if RECORD in missing:
            about = record(self.pipe, self.shown, self.works, folder.about.get("seconds"), known) | folder.about
            about |= {"prompts": list(self.prompts.values()), "chat": self.args.chat}
            files[RECORD] = as_json(about).encode()
        folder.keep(files)
        if report.made:
            return [f"{self.summary(report.made, folder.about['seconds'])} -> {place / TEXTS}", *told]
        rest = f"; {' and '.join(files)} made again" if files else ""
        return [f"{self.shown}: all {num} text{'s' * (num > 1)} were there{rest} -> {place / TEXTS}", *told]

    def summary(self, made: int, seconds: float) -> str:
        """How many texts there are, and how long that took."""
        num = len(self.works)
        rest = "" if made == num else f", {made} of them now"
        what = f"{num} text{'s' * (num > 1)} of {self.schedule.tokens} tokens"
        return f"{self.shown}: {what} with {self.schedule} evaluations{rest} in {seconds:.2f} s"

    def read(self, result: Done) -> tuple[str, str]:
        """A text, and what people are to see of it: with its prompt, unless that was said in a chat."""
        pieces = finished_pieces(self.pipe, result.work, result.tokens)
        shown = [words for words, state in pieces if not (self.args.chat and state == TokenState.KNOWN)]
        return str(self.pipe.answer(result)), "".join(shown)

    def give(self, index: int, text: str, shown: str, way: str | None = None, title: str = "") -> None:
        """Print a text, or in a terminal what people are to see of it."""
        if self.args.json:
            text, title = self.line(index, text, way), ""
        elif sys.stdout.isatty():
            text = shown + "\n" * (len(self.works) > 1 or way is not None)
        hand_over(f"{title}\n{text}" if title else text)

    def line(self, index: int, text: str, way: str | None = None) -> str:
        """A text as JSON."""
        about = {} if way is None else {"way": way}
        return json.dumps({"index": index, **about, "prompt": self.prompts[index], "text": text}, ensure_ascii=False)

    def equal_steps(self, turns: DrawInTurn) -> int:
        """Plain steps that take as long as reuse took, or 0 where the pairs do not say: whole blocks share them."""
        gain, steps = turns.pairs.speedup.median, len(self.schedule.steps)
        share = self.schedule.tokens // (self.works[0].block or self.schedule.tokens)
        return 0 if gain is None else round(steps / gain) // share * share

    def compared(self, turns: DrawInTurn) -> dict[str, tuple[str, dict[int, str]]]:
        """The first texts of both ways, and of plain decoding in equal time: a title, and texts by their numbers."""
        steps, speedup = len(self.schedule.steps), turns.pairs.speedup
        titles = {"plain": f"plain, {steps} steps: {turns.pairs.seconds('plain'):.2f} s"}
        gain = f", {speedup.factor}" if speedup.clear else ""
        titles["reused"] = f"reused, {self.schedule}: {turns.pairs.seconds('reused'):.2f} s{gain}"
        rows = {way: (titles[way], texts) for way, texts in turns.answers.items()}
        equal = self.equal_steps(turns)
        if 0 < equal < steps:
            options = self.pipe.options_for(SamplingOptions.from_args(self.args)).plain(self.schedule.tokens)
            wanted = [work for work in self.works if work.index in turns.answers["plain"]]
            same = [in_steps(work, replace(options, full=equal)) for work in wanted]
            done = [result for result in draw(self.pipe, same) if isinstance(result, Done)]
            texts = {one.work.index: self.read(one)[0] for one in done}
            rows["plain in equal time"] = f"plain, {equal} steps, in equal time", texts
        return rows

    def verdict(self, turns: DrawInTurn) -> str:
        """What the pairs say."""
        plain, speedup = turns.pairs.seconds("plain"), turns.pairs.speedup
        return f"plain decoding in as many steps took {plain:.2f} s: reuse is {speedup}"


def as_lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def in_steps(work: Work, options: SamplingOptions) -> Work:
    """The same text by another schedule."""
    return replace(work, schedule=options.schedule(work.schedule.tokens, work.schedule.known))


class Bar:
    """A bar that counts sub-steps, with the texts that are finished beside it."""

    def __init__(self, works: Sequence[Work], name: str, hidden: bool) -> None:
        self.num, self.finished, self.steps = len(works), 0, 0
        self.bar = tqdm(total=sum(len(work.schedule.steps) for work in works), desc=name, unit="step", disable=hidden)
        self.show()

    def step(self, works: Sequence[Work], step: int, canvas: Canvas) -> None:
        self.bar.update(len(works))

    def done(self, results: Sequence[Done | Failed]) -> None:
        """A text may have ended before its last sub-step."""
        self.finished += len(results)
        self.steps += sum(len(result.work.schedule.steps) for result in results)
        self.bar.update(self.steps - self.bar.n)
        self.show()

    def show(self) -> None:
        self.bar.set_postfix_str(f"{self.finished}/{self.num} texts")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
