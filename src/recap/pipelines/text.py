"""Prompts in, texts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack, cast

import torch
from torch import Tensor, nn

from recap.checkpoints import CheckpointError, save_pretrained
from recap.core.noise import stream_key
from recap.core.options import SamplingOptions
from recap.core.presets import TEXT
from recap.core.schedule import Schedule
from recap.core.start import check_fit
from recap.models.adapter import Adapter
from recap.models.registry import Config
from recap.models.text import TextAdapter
from recap.pipelines.base import BATCH, Asked, ModelPipeline
from recap.pipelines.inputs import check_count, generators_of
from recap.pipelines.loading import Parts
from recap.pipelines.output import Call, frames
from recap.pipelines.prompts import Message, WriteRequest, changes, chats_of, check_tokenizer, encoded, rows_of
from recap.pipelines.written import TextFrame, TextOutput
from recap.runs.draw import draw
from recap.runs.works import NOT_FINITE, Done, Failed, Start, Work

LENGTH = 128  # tokens that are written, where nothing else is said
BUCKET = 64  # where texts are computed together, each is filled up to a multiple of this


class TextPipeline(ModelPipeline):
    """A bidirectional language model, its tokenizer, and the grouped-decoding loop between them.

    `tokenizer` has `encode` and `decode`, as recap's and those of transformers do; without one, ids go in and out.
    Text i of a seed is the same whatever else is in the batch.
    """

    modality = "text"

    def __init__(
        self,
        model: nn.Module | Adapter,
        tokenizer: Any = None,
        *,
        options: SamplingOptions | str | None = None,
        batch_size: int = BATCH,
    ) -> None:
        super().__init__(model, None, batch_size)
        if not isinstance(self._plain_model, TextAdapter):
            raise ValueError(
                f"a TextPipeline needs a language model such as LLaDA or Dream, but "
                f"{type(self._plain_model).__name__} is none; use recap.Pipeline for models of images"
            )
        self.tokenizer = tokenizer
        self.options = self.options_for(options)
        self.length = min(LENGTH, self._plain_model.longest)
        self._lengths: dict[tuple[Adapter, int], Adapter] = {}
        check_tokenizer(tokenizer, self._plain_model)

    @classmethod
    def from_parts(cls, parts: Parts, name: object) -> Self:
        try:
            return cls(parts.net, parts.tokenizer, options=parts.about.options)
        except ValueError as error:
            raise CheckpointError(f"{name}: {error}") from error

    def save_pretrained(self, folder: str | Path, *, compact: bool = False) -> Path:
        """Write the model to `folder`, with the tokenizer's file if it is one of recap's."""
        folder = save_pretrained(self.model.module, folder, compact=compact, sampling=self.options.json())
        if (
            save := getattr(self.tokenizer, "save", None) or getattr(self.tokenizer, "save_pretrained", None)
        ) is not None:
            save(folder)
        return folder

    def compile(self, engine: str = "graphs") -> Self:
        self._lengths = {}
        return super().compile(engine)

    @property
    def language(self) -> TextAdapter:
        """The model without its engine."""
        return cast(TextAdapter, self._plain_model)

    def with_model(self, model: Adapter) -> Self:
        other = super().with_model(model)
        other._lengths = {}
        return other

    def model_of(self, work: Work) -> Adapter:
        assert work.start is not None
        length = len(work.start.masked)
        if length == self.model.num_tokens:
            return self.model
        key = self.model, length
        if key not in self._lengths:
            if len(self._lengths) >= 8:  # an engine holds on to memory for each
                self._lengths.pop(next(iter(self._lengths))).release()
            self._lengths[key] = self.model.at(length)
        return self._lengths[key]

    def at(self, length: int) -> Self:
        """Write texts of this length from now on, where no other is asked for; the model is set up for it."""
        model = self.language.at(length)
        if self._room(length) != length:
            raise ValueError(f"on a {self.device.type} texts have a multiple of {BUCKET} tokens; {length} is none")
        self._plain_model, self.length = model, length
        return self.compile(self._asked_engine)

    def release(self) -> None:
        for model in self._lengths.values():
            model.release()
        self._lengths = {}
        super().release()

    def options_for(self, asked: str | SamplingOptions | None) -> SamplingOptions:
        """The model's own options with what is asked for over them."""
        if asked is None:
            return self.options
        options = self.options.override(SamplingOptions.from_text(asked) if isinstance(asked, str) else asked)
        if options.preset not in TEXT:
            raise ValueError(f"preset {options.preset!r} is for images; use one of text: {', '.join(TEXT)}")
        return options

    def schedule(self, asked: Asked | None = None, tokens: int | None = None, known: int = 0) -> Schedule:
        """The schedule that writes `tokens` behind or between `known` ones: the model's own, or as asked."""
        tokens = self.length if tokens is None else tokens
        if isinstance(asked, Schedule):
            schedule = asked.knowing(known)
        else:
            schedule = self.options_for(asked).schedule(tokens, known)
        check_fit(self.language.at(tokens + known), schedule)
        return schedule

    def works(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        first: int = 0,
        **asked: Unpack[WriteRequest],
    ) -> list[Work]:
        """One text to write for each prompt and each of `num_texts` answers; everything is checked here."""
        seed = asked.get("seed")
        rows = self._rows(prompt, asked)
        answers, length = asked.get("num_texts", 1), asked.get("gen_length")
        check_count(answers, "num_texts", "answers to write to each prompt")
        num = check_count(len(rows) * answers, f"num_texts {answers} times {len(rows)} prompts", "texts to write")
        if length is None:
            length = 0 if any(self.language.config.mask_id in row for row in rows) else self.length
        if not isinstance(length, int) or isinstance(length, bool) or length < 0:
            raise ValueError(f"gen_length is {length!r}; it is a number of tokens, 0 or more")
        given = asked.get("schedule")
        options = None
        if not isinstance(given, Schedule):
            options = self.options_for(given).override(changes(asked))
        elif any(changes(asked).json()):
            raise ValueError(f"a Schedule says everything itself; leave {', '.join(changes(asked).json())} out")
        generators = generators_of(num, asked.get("generator"), seed, first)
        stop = self.language.config.eos_id if asked.get("eos_early_stop", True) else None
        works = []
        answered = (row for row in rows for _ in range(answers))
        for number, (row, own) in enumerate(zip(answered, generators, strict=True)):
            start, tokens = self._start(row, length)
            known = len(start.masked) - tokens
            order = None if options is None else options.selector_name
            works.append(
                Work(
                    self.schedule(given if options is None else options, tokens, known),
                    first + number,
                    stream_key(own),
                    None if seed is None else int(seed),
                    len(row) + length if self.device.type != "cpu" else None,
                    order,
                    start,
                    None if options is None else options.block,
                    stop,
                    noun="text",
                )
            )
        return works

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        output_type: str = "text",
        callback_on_step_end: Any = None,
        **asked: Unpack[WriteRequest],
    ) -> TextOutput:
        """Write one text for each prompt; the arguments are those of `WriteRequest`.

        output_type: "text", or "ids" for sequences alone. callback_on_step_end(pipe, step, decoded, {"canvas":
        canvas, "images": indices}) is called after every sub-step, as for images.
        """
        if output_type not in ("text", "ids"):
            raise ValueError(f"output_type is {output_type!r}; it must be text or ids")
        if output_type == "text":
            self.need_tokenizer()
        works = self.works(prompt, **asked)
        call = Call(self, works, callback_on_step_end)
        with call.bar:
            results = {result.work: result for result in draw(self, works, call, decode=False)}
        if failed := [place for place, work in enumerate(works) if isinstance(results[work], Failed)]:
            raise FloatingPointError(f"text(s) {failed} of the batch {NOT_FINITE}")
        sequences = [self.written(work, results[work].tokens) for work in works]
        texts = None
        if output_type == "text":
            texts = [str(self.text_of(work, ids)) for work, ids in zip(works, sequences, strict=True)]
        return TextOutput(texts, sequences, tuple(work.schedule for work in works))

    def stream(self, prompt: str | Sequence[str] | None = None, **asked: Unpack[WriteRequest]) -> Iterator[TextFrame]:
        """The texts so far, after every sub-step; the run waits for whoever looks, and ends when nobody does."""
        works = self.works(prompt, **asked)
        if len({work.kind for work in works}) > 1:
            raise ValueError("these prompts differ in length; stream them one by one")
        return (TextFrame(frame, tuple(works), self) for frame in frames(self, works))

    def written(self, work: Work, tokens: Tensor) -> Tensor:
        """The ids that a sequence has, of all tokens of a work in raster order; what follows an end is ends."""
        assert work.start is not None
        masked, length = work.start.masked.to(tokens.device), work.label or len(tokens)
        begin = self.begins(work)
        ids = tokens[:length].clone()
        if work.stop is not None:
            ends = ((ids == work.stop) & masked[:length]).long().cumsum(0)
            ids[(ends > 0) & masked[:length]] = work.stop
        return ids[begin:]

    def text_of(self, work: Work, ids: Tensor) -> str | None:
        """A sequence as text, up to its end if the work stops there."""
        if self.tokenizer is None:
            return None
        listed = ids.tolist()
        if work.stop in listed and self.begins(work):
            listed = listed[: listed.index(work.stop)]
        return str(self.tokenizer.decode(listed, skip_special_tokens=True))

    def answer(self, result: Done) -> str | None:
        return self.text_of(result.work, self.written(result.work, result.tokens))

    def decode(self, tokens: Tensor, output_type: str = "pil") -> None:
        return None

    @property
    def decoder(self) -> None:
        return None

    def trial(
        self, num: int, schedule: Asked | None = None, *, seed: int = 0, labels: Sequence[int] | None = None
    ) -> list[Work]:
        return self.works(num_texts=num, schedule=schedule, gen_length=self.length, eos_early_stop=False, seed=seed)

    def sized(self, tokens: int) -> Config:
        return self.language.at(tokens).config

    @property
    def chats(self) -> bool:
        """Whether the tokenizer has a template for messages."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def need_tokenizer(self) -> Any:
        """The tokenizer, where nothing goes without."""
        if self.tokenizer is None:
            raise ValueError('this pipeline has no tokenizer; give it one, or input_ids= and output_type="ids"')
        return self.tokenizer

    def begins(self, work: Work) -> int:
        """Where a sequence begins: behind the prompt, or at its beginning where there were masks in it."""
        assert work.start is not None
        masked = work.start.masked[: work.label or len(work.start.masked)]
        behind = int(masked.flip(0).long().cumprod(0).sum())  # masks at the end
        return len(masked) - behind if behind == int(masked.sum()) else 0

    def _rows(self, prompt: str | Sequence[str] | None, asked: WriteRequest) -> list[list[int]]:
        """The ids of every prompt."""
        messages, input_ids = asked.get("messages"), asked.get("input_ids")
        named = {"prompt": prompt, "messages": messages, "input_ids": input_ids}
        if len(said := [name for name, value in named.items() if value is not None]) > 1:
            raise ValueError(f"{' and '.join(said)} were given; give one of them")
        if asked.get("attention_mask") is not None and input_ids is None:
            raise ValueError("attention_mask says which of input_ids belong to a prompt; give input_ids with it")
        if input_ids is not None:
            rows = rows_of(input_ids, asked.get("attention_mask"))
        elif messages is not None:
            rows = [self._chat(chat) for chat in chats_of(messages)]
        elif prompt is None:
            return [[]]
        else:
            prompts = [prompt] if isinstance(prompt, str) else list(prompt)
            if not prompts or not all(isinstance(one, str) for one in prompts):
                raise ValueError(f"prompt is {prompt!r:.80}; expected a text, or a list of texts")
            rows = [encoded(self.need_tokenizer(), one) for one in prompts]
        codes = self.language.config.codes
        for place, row in enumerate(rows):
            if not row:
                raise ValueError(f"prompt {place} is empty; leave the prompt out to write from nothing")
            if strange := [i for i in row if not 0 <= i < codes]:
                raise ValueError(
                    f"id {strange[0]} in prompt {place} is none of the model's {codes}; is the tokenizer its own?"
                )
        return rows

    def _chat(self, messages: Sequence[Message]) -> list[int]:
        tokenizer = self.need_tokenizer()
        if not self.chats:
            raise ValueError("this model's tokenizer has no chat template; give a prompt= instead of messages=")
        text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        return encoded(tokenizer, text, special=False)

    def _start(self, row: list[int], length: int) -> tuple[Start, int]:
        """Where a text begins, and how many tokens are to be written."""
        config, whole = self.language.config, len(row) + length
        longest = self.language.longest
        if whole > longest:
            raise ValueError(
                f"a prompt of {len(row)} tokens and {length} to write make {whole}, but the model has places for "
                f"{longest}; shorten the prompt, or ask for a gen_length of {max(0, longest - len(row))} at most"
            )
        ids = torch.full((self._room(whole),), config.eos_id)
        ids[: len(row)] = torch.tensor(row, dtype=torch.long)
        ids[len(row) : whole] = config.mask_id
        masked = ids == config.mask_id
        if not bool(masked.any()):
            raise ValueError(
                "there is nothing to write: gen_length is 0 and the prompt has no masks; give a gen_length"
            )
        return Start(masked, tokens=ids.to(self.device)), int(masked.sum())

    def _room(self, length: int) -> int:
        """How many places a text is given."""
        together = self.device.type not in ("cpu", "meta")
        return length if not together else min(-(-length // BUCKET) * BUCKET, self.language.longest)

    def __repr__(self) -> str:
        model = self.language
        dtype = str(model.dtype).removeprefix("torch.")
        tokenizer = "no tokenizer" if self.tokenizer is None else type(self.tokenizer).__name__
        return (
            f"<TextPipeline: {type(model.module).__name__}, up to {model.longest} tokens, {tokenizer}; "
            f"{dtype} on {self.device}, engine {self.engine}; options {self.options}>"
        )
